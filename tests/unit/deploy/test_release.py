"""A release: what it refuses, its notes, and what is in its packages; the image has a proof."""

import subprocess
import sys
import tarfile
import time
from pathlib import Path
from zipfile import ZipFile

import pytest

from deploy import release
from tests.support.repository import ROOT

VERSION = release.version_of(ROOT)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with what a release is built of, of this checkout as it stands."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    folder = tmp_path / "repository"
    for name in filter(None, listed.stdout.split("\0")):
        if name.startswith(("tests/", "docs/")) or not (ROOT / name).exists():
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_symlink():
            (folder / name).symlink_to((ROOT / name).readlink())
        else:
            (folder / name).write_bytes((ROOT / name).read_bytes())
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder: Path, *arguments: str) -> None:
    author = ("-c", "user.name=Nobody", "-c", "user.email=nobody@example.com")
    subprocess.run(["git", *author, *arguments], cwd=folder, check=True)


def commit(folder: Path) -> None:
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "As it stands")


@pytest.mark.slow
def test_the_wheel_of_the_sdist_has_every_module_and_the_licence(
    repository: Path, tmp_path: Path
) -> None:
    (source := tmp_path / "source").mkdir()
    release.export(repository, source)
    release.build_packages(source, tmp_path, "1790000000")
    with ZipFile(tmp_path / f"slackwater-{VERSION}-py3-none-any.whl") as wheel:
        packed = set(wheel.namelist())
        made_at = {one.date_time for one in wheel.infolist()}
    package = repository / "slackwater"
    linked = ("reader", "scheduler", "spark_sink", "state")
    modules = {
        f"slackwater/{path.relative_to(folder.parent)}"
        for folder in (repository / name for name in linked)
        for path in folder.rglob("*.py")
    } | {str(path.relative_to(repository)) for path in package.rglob("*.py")}
    assert modules <= packed
    assert f"slackwater-{VERSION}.dist-info/licenses/LICENSE" in packed
    assert not [name for name in packed if name.startswith(("tests", "bench", "deploy"))]
    assert made_at == {time.gmtime(1_790_000_000)[:6]}
    with tarfile.open(tmp_path / f"slackwater-{VERSION}.tar.gz") as sdist:
        assert f"slackwater-{VERSION}/slackwater/cli.py" in sdist.getnames()


def test_the_notes_are_the_versions_section_of_the_changelog() -> None:
    changelog = "# Changelog\n\n## 1.1.0, 2027-01-01\n\n- new\n\n## 1.0.0\n\n- first\n"
    assert release.notes_of(changelog, "1.1.0") == "# Slackwater 1.1.0\n\n- new\n"
    assert release.notes_of(changelog, "1.0.0") == "# Slackwater 1.0.0\n\n- first\n"
    with pytest.raises(release.ReleaseError, match=r"nothing of 1\.0: write"):
        release.notes_of(changelog, "1.0")
    assert "Exactly once" in release.notes_of((ROOT / "CHANGELOG.md").read_text(), VERSION)


def test_a_chart_of_another_version_is_refused(repository: Path) -> None:
    chart = repository / "deploy" / "chart" / "Chart.yaml"
    chart.write_text(chart.read_text().replace(f"appVersion: {VERSION}", "appVersion: 0.9.0"))
    with pytest.raises(release.ReleaseError, match=r"appVersion 0\.9\.0, pyproject\.toml has"):
        release.version_of(repository)


def test_what_is_not_committed_and_a_missing_engine_end_it_with_2_and_leave_nothing(
    repository: Path, tmp_path: Path
) -> None:
    def refusal(engine: str) -> str:
        command = [sys.executable, "-m", "deploy.release", "--engine", engine, "--to", str(to)]
        done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert not to.exists()
        return done.stderr

    to = tmp_path / "release"
    assert "there is no no-engine" in refusal("no-engine")
    (repository / "README.md").write_text("changed")
    assert "commit these changes first" in refusal("true")


def test_the_checksums_are_what_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("notes\n")
    release.write_checksums(tmp_path)
    command = ["sha256sum", "--check", "--strict", release.CHECKSUMS]
    subprocess.run(command, cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "notes.md").write_text("other\n")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode
