"""Fresh environments with the wheel that this checkout makes, and nothing of the checkout."""

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.repository import ROOT

PIP = (sys.executable, "-m", "pip", "-q", "--disable-pip-version-check")
# The build needs setuptools, which is among this environment's packages.
NO_FETCHING = ("--no-deps", "--no-build-isolation", "--no-index")


@dataclass(frozen=True)
class Environment:
    """A virtual environment below a folder."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        (site_packages,) = self.folder.glob("lib/python*/site-packages")
        return site_packages

    def install(self, *arguments: str) -> None:
        run(*PIP, "--python", str(self.python), "install", *NO_FETCHING, *arguments)


def run(
    *command: str,
    cwd: Path | None = None,
    programs: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a command; its standard output.

    Args:
        command: with its arguments.
        cwd: where.
        programs: the folder that an activated environment puts first on the path, where Spark
            looks for the Python of its workers.
        variables: more of the environment.
    """
    environ = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    if programs is not None:
        environ["PATH"] = f"{programs}{os.pathsep}{environ['PATH']}"
    environ |= variables or {}
    done = subprocess.run(
        command, cwd=cwd, env=environ, capture_output=True, text=True, check=False, timeout=500
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr[:3_000]}"
    return done.stdout


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Return an environment with this one's dependencies, and without us."""
    return new_environment(tmp_path / "environment")


def new_environment(folder: Path) -> Environment:
    """Make an environment with this one's dependencies, and without us."""
    venv.create(folder, with_pip=False)
    made = Environment(folder)
    # The paths alone: the files that would put this checkout on them are not read there.
    dependencies = [path for path in sys.path if Path(path).name == "site-packages"]
    (made.packages / "dependencies.pth").write_text("\n".join(dependencies) + "\n")
    return made


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the checkout, so that a build may leave files in it."""
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    folder = tmp_path_factory.mktemp("clone") / "checkout"
    for name in filter(None, listed.split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def wheel(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel that is built of a copy, which is gone after that."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(checkout, folder / "copy", symlinks=True)
    run(*PIP, "wheel", *NO_FETCHING, "-w", str(folder), str(folder / "copy"))
    shutil.rmtree(folder / "copy")
    (made,) = folder.glob("*.whl")
    return made
