"""Builds a release of what is committed: packages, image, chart, bill of materials, notes.

`python -m deploy.release --engine docker --to build/release`; `make release` calls it. The version
is that of pyproject.toml. The folder has a wheel and an sdist, the image as an archive that
`docker load` takes, the chart as Helm packages it, the image's bill of materials and licences, the
version's section of CHANGELOG.md as its notes, and the checksums of all of them. The folder is
there when all is in it.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import helm_python
import yaml

ROOT: Final = Path(__file__).parents[1]
CHECKSUMS: Final = "SHA256SUMS"
_IN_IMAGE: Final = ("sbom.cdx.json", "licenses.txt")


class ReleaseError(Exception):
    """What keeps a release from being built, and what to do."""


def version_of(source: Path) -> str:
    """Return the version of a checkout.

    Raises:
        ReleaseError: the chart is of another version.
    """
    project = tomllib.loads((source / "pyproject.toml").read_text())["project"]
    version: str = project["version"]
    chart = yaml.safe_load((source / "deploy" / "chart" / "Chart.yaml").read_text())
    for key in ("version", "appVersion"):
        if chart[key] != version:
            raise ReleaseError(
                f"deploy/chart/Chart.yaml has {key} {chart[key]}, pyproject.toml has {version}:"
                " write the same version into both"
            )
    return version


def notes_of(changelog: str, version: str) -> str:
    """Return the notes of a version: its section of the changelog, without the heading.

    Raises:
        ReleaseError: there is no such section, or it is empty.
    """
    heading = rf"^## {re.escape(version)}(?:,[^\n]*)?\n(.*?)(?=^## |\Z)"
    section = re.search(heading, changelog, re.MULTILINE | re.DOTALL)
    if section is None or not section[1].strip():
        raise ReleaseError(f"CHANGELOG.md has nothing of {version}: write its section first")
    return f"# Slackwater {version}\n\n{section[1].strip()}\n"


def export(repository: Path, to: Path) -> None:
    """Write the files of a repository's last commit into a folder.

    Raises:
        ReleaseError: the repository has changes that are not committed.
    """
    changed = _output("git", "-C", repository, "status", "--porcelain")
    if changed:
        raise ReleaseError(f"commit these changes first, or stash them:\n{changed}")
    archive = to / "source.tar"
    _run("git", "-C", repository, "archive", "--output", archive, "HEAD")
    with tarfile.open(archive) as files:
        files.extractall(to, filter="tar")
    archive.unlink()


def build_packages(source: Path, to: Path, made_at: str) -> None:
    """Build the sdist, and from it the wheel.

    Args:
        source: the files of the release.
        to: where the packages are put.
        made_at: seconds since the Unix epoch, the time of all files in them.
    """
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", to, source]
    _run(*command, variables={"SOURCE_DATE_EPOCH": made_at})


def build_image(source: Path, to: Path, engine: str, version: str) -> None:
    """Build the image, and write its archive, its bill of materials and its licences.

    Args:
        source: the files of the release.
        to: where they are put.
        engine: docker, or a program with its commands, as podman.
        version: the image's tag.
    """
    tag = f"slackwater:{version}"
    _run(engine, "build", "--file", source / "deploy" / "Dockerfile", "--tag", tag, source)
    _run(engine, "save", "--output", to / f"slackwater-{version}-image.tar", tag)
    container = _output(engine, "create", tag)
    try:
        for name in _IN_IMAGE:
            _run(engine, "cp", f"{container}:/opt/slackwater/{name}", to / name)
    finally:
        _run(engine, "rm", container)


def write_checksums(folder: Path) -> None:
    """Write the checksums of a folder's files, as `sha256sum --check` reads them."""
    lines = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / CHECKSUMS).write_text("".join(lines))


def release(repository: Path, to: Path, engine: str) -> None:
    """Build a release into a folder, which takes the place of one that is there.

    Raises:
        ReleaseError: something is missing that a release needs.
        subprocess.CalledProcessError: a build has failed, and has said why.
    """
    if shutil.which(engine) is None:
        raise ReleaseError(
            f"there is no {engine}, which builds the image: install it, or name another one,"
            " as in `make release ENGINE=podman`"
        )
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch, "slackwater")
        source.mkdir()
        export(repository, source)
        version = version_of(source)
        notes = notes_of((source / "CHANGELOG.md").read_text(), version)
        made = Path(scratch, "release")
        made.mkdir()
        (made / "notes.md").write_text(notes)
        build_packages(source, made, _output("git", "-C", repository, "log", "-1", "--format=%ct"))
        helm_python.package(source / "deploy" / "chart", destination=made)
        build_image(source, made, engine, version)
        write_checksums(made)
        shutil.rmtree(to, ignore_errors=True)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made, to)


def _run(*command: str | Path, variables: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=os.environ | (variables or {}))


def _output(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def main(arguments: Sequence[str]) -> None:
    """Build a release; exit with 2 where the user has to do something first, 1 where it fails."""
    parser = argparse.ArgumentParser(description="Builds a release of what is committed.")
    parser.add_argument("--engine", default="docker")
    parser.add_argument("--to", type=Path, default=ROOT / "build" / "release")
    options = parser.parse_args(arguments)
    try:
        release(ROOT, options.to, options.engine)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        sys.exit(2)
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(map(str, error.cmd))} failed", file=sys.stderr)
        sys.exit(1)
    print("\n".join(path.name for path in sorted(options.to.iterdir())))


if __name__ == "__main__":
    main(sys.argv[1:])
