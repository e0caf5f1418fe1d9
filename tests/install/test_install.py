"""An install into a fresh environment: what it puts there, and that Spark finds the format.

The environments have this one's dependencies on their path, but nothing of this checkout.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyspark
import pytest

from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.emulators import NewDatabase

ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = Path(__file__).parent / "notebook.py"
EXECUTE = Path(__file__).parent / "execute.py"
# Prints the file that an import of each name would load, null where there is no such module.
ORIGINS = """
import json
from importlib.util import find_spec
names = ("slackwater", "pyspark_slackwater", "reader", "state", "scheduler", "spark_sink")
print(json.dumps({name: (spec := find_spec(name)) and str(spec.origin) for name in names}))
"""
BARE_NAMES = ("reader", "state", "scheduler", "spark_sink")
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
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    made = Environment(folder)
    # The path alone: the files that would put this checkout on it are not read there.
    dependencies = Path(pyspark.__file__).parent.parent
    (made.packages / "dependencies.pth").write_text(f"{dependencies}\n")
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


def test_a_wheel_holds_the_package_and_the_module_by_which_spark_finds_the_format(
    checkout: Path, wheel: Path
) -> None:
    names = run(sys.executable, "-m", "zipfile", "-l", str(wheel)).splitlines()[1:]
    files = [line.split()[0] for line in names]
    tops = {file.partition("/")[0] for file in files}
    (info,) = (top for top in tops if top.endswith(".dist-info"))
    assert tops == {"slackwater", "pyspark_slackwater.py", info}
    for name in BARE_NAMES:
        ours = {str(path.relative_to(ROOT)) for path in (ROOT / name).rglob("*.py")}
        assert {f"slackwater/{path}" for path in ours} <= set(files)
    needed = [
        path.relative_to(checkout)
        for folder in ("slackwater/monitoring/page", "slackwater/state/migrations")
        for path in (checkout / folder).rglob("*.*")
    ]
    assert {path.suffix for path in needed} == {".py", ".html", ".css", ".js"}
    assert {str(path) for path in needed} <= set(files)


@pytest.mark.parametrize("kind", ["wheel", pytest.param("editable", marks=pytest.mark.long)])
def test_a_notebook_in_an_empty_folder_reads_changes(
    kind: str,
    environment: Environment,
    checkout: Path,
    wheel: Path,
    new_database: NewDatabase,
    tmp_path: Path,
) -> None:
    notebook = str(shutil.copy2(checkout / "examples" / "changes.ipynb", tmp_path))
    if kind == "wheel":
        environment.install(str(wheel))
    else:
        environment.install("-e", str(checkout))
    # A package of the user's that has one of our folders' names.
    (environment.packages / "reader.py").write_text("")
    stream = new_database()
    start = format_rfc3339(Connection(stream).strong_read_timestamp_ns())
    written = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=8).run(
        transactions_per_second=20, seconds=1
    )
    folder = tmp_path / "empty"
    folder.mkdir()
    python, programs = str(environment.python), environment.python.parent
    if kind == "wheel":
        variables = {
            "PROJECT": stream.project,
            "INSTANCE": stream.instance,
            "DATABASE": stream.database,
            "CHANGE_STREAM": stream.change_stream,
        }
        printed = run(python, str(EXECUTE), notebook, cwd=folder, variables=variables)
        counts, typed, landed = outputs(json.loads(printed))
        assert "| Customers|  INSERT|" in counts
        assert "|INSERT  |0      |item " in typed
        rows, missing = json.loads(landed.replace("(", "[").replace(")", "]"))
        assert rows >= written.transactions
        assert missing == 0
    else:
        names = (stream.project, stream.instance, stream.database, stream.change_stream)
        script = (python, str(NOTEBOOK), *names, start, str(written.transactions))
        printed = run(*script, cwd=folder, programs=programs)
        assert int(printed.splitlines()[-1]) >= written.transactions
    modules: dict[str, str | None] = json.loads(run(python, "-c", ORIGINS, cwd=folder))
    home = environment.packages if kind == "wheel" else checkout
    assert modules["slackwater"] == str(home / "slackwater" / "__init__.py")
    assert modules["pyspark_slackwater"] == str(home / "pyspark_slackwater.py")
    assert modules["reader"] == str(environment.packages / "reader.py")
    if kind == "wheel":
        assert not any(modules[name] for name in BARE_NAMES if name != "reader")


def outputs(notebook: dict[str, Any]) -> list[str]:
    """Return what the cells of an executed notebook show, without what Java says."""
    shown = []
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if output.get("name") != "stderr" and "incubator" not in "".join(text):
                shown.append("".join(text))
    return shown
