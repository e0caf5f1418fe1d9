"""Jars for the tests' servers, fetched once by the Ivy that Spark brings."""

import fcntl
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark

from slackwater.pipeline.spark.java import find_java
from tests.support.repository import BUILD


@contextmanager
def alone() -> Iterator[None]:
    """Keep other processes from the build folder: two Ivys at once spoil each other's cache."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / "ivy.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def artifact(group: str, name: str, version: str) -> Path:
    """Return the folder with an artifact's jar and those that it depends on."""
    return jars(f"{name}-{version}", ["-dependency", group, name, version], name)


def jars(folder: str, what: Sequence[str], main: str) -> Path:
    """Return a folder of jars.

    Args:
        folder: its name in the build folder.
        what: Ivy's options that say what to fetch.
        main: how the name of a jar begins that must be there.
    """
    path = BUILD / folder
    with alone():
        if not path.exists():
            _fetch(path, what, main)
    return path


def _fetch(path: Path, what: Sequence[str], main: str) -> None:
    (ivy,) = Path(pyspark.__file__).parent.glob("jars/ivy-*.jar")
    new = path.with_name(f"{path.name}-{uuid.uuid4().hex}")
    pattern = f"{new}/[artifact]-[revision](-[classifier]).[ext]"
    command = [str(find_java()), "-jar", str(ivy), "-m2compatible", "-confs", "default"]
    fetched = subprocess.run(
        [*command, *what, "-retrieve", pattern],
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert list(new.glob(f"{main}-*.jar")), f"{main} was not fetched:\n{fetched.stdout[-2_000:]}"
    new.rename(path)
