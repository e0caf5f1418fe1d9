"""Jars that Spark's JVM fetches at its first start: by one process at a time.

Ivy, which fetches them, does not expect another process in its cache: of two that fetch the same
jar, one finds the other's unfinished file and fails.
"""

import fcntl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark import SparkConf

from slackwater.pipeline.spark.class_path import PACKAGES

# Spark 4's default folder of them.
_FOLDER: Final = Path("~/.ivy2.5.2")
_LOCK: Final = "slackwater.lock"


@contextmanager
def fetching_alone(conf: SparkConf) -> Iterator[None]:
    """Keep others from fetching jars during the context, if this process has to fetch any.

    Args:
        conf: the settings that the JVM is started with.

    Raises:
        OSError: Ivy's folder can't be made or written, so that it could fetch nothing either.
    """
    packages = [name for name in (conf.get(PACKAGES) or "").split(",") if name]
    if not packages:
        yield
        return
    folder = ivy_folder(conf.get("spark.jars.ivy"))
    with locked(folder) as unlock:
        if all((folder / "jars" / file_name(package)).exists() for package in packages):
            unlock()
        yield


def ivy_folder(setting: str | None) -> Path:
    """Return Ivy's folder, for Spark's setting spark.jars.ivy."""
    return Path(setting or _FOLDER).expanduser()


@contextmanager
def locked(folder: Path) -> Iterator[Callable[[], None]]:
    """Keep others from fetching into Ivy's folder; yield a function that releases them early.

    Raises:
        OSError: the folder can't be made or written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w") as lock:
        # Wait for another process that fetches now.
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(lock, fcntl.LOCK_UN)


def file_name(package: str) -> str:
    """Return the name under which Spark keeps the jar of GROUP:ARTIFACT:VERSION."""
    group, _, artifact = package.partition(":")
    return f"{group}_{artifact.replace(':', '-')}.jar"
