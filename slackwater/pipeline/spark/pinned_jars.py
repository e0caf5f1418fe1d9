"""The check that the jars that Spark's JVM has fetched are those that were tested.

jars.sha256 beside this file names them with their checksums, as sha256sum prints them: all that
sinks and connectors need, with what these depend on. `make lock` writes it.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import structlog

from slackwater.errors import SparkFailedError

LIST: Final = Path(__file__).with_name("jars.sha256")
# In place of the checksum of a jar that could not be fetched when the list was written.
UNSEEN: Final = "-" * 64

_log = structlog.get_logger(__name__)


@cache
def pinned() -> Mapping[str, str]:
    """Return the checksum of each jar, by the name under which Ivy keeps it."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    return {name: checksum for checksum, name in map(str.split, lines)}


def require_pinned(jars: Sequence[Path], ivy: Path, *, has_own_packages: bool) -> None:
    """Refuse jars that are not those that were tested.

    Args:
        jars: on Spark's class path: fetched, or copies of such, or the user's under other names.
        ivy: the folder of jars that Ivy has fetched, now or at an earlier start.
        has_own_packages: whether the user has packages of his own fetched. Then jars that are in no
            list are taken for theirs.

    Raises:
        SparkFailedError: a jar has another content, or was fetched and is in no list.
    """
    unseen = [jar for jar in jars if pinned().get(jar.name) == UNSEEN]
    if unseen:
        _log.warning("jars without a checksum to compare with", jars=" ".join(map(str, unseen)))
    fetched = (ivy / "jars").resolve()
    for jar in jars:
        expected = pinned().get(jar.name)
        is_fetched = jar.parent.resolve() == fetched
        # The dependencies of a jar that could not be fetched are not known either.
        if expected is None and is_fetched and not (has_own_packages or unseen):
            raise SparkFailedError(
                f"{jar} was fetched, and is none of the jars that this version was tested with.",
                "Name its package in spark.conf: spark.jars.packages, if it is what you want; or"
                " install a pyspark of requirements.lock",
            )
        if expected not in (None, UNSEEN) and (actual := checksum(jar)) != expected:
            again = (
                f"Remove {ivy}; it is fetched again"
                if is_fetched
                else f"Remove {jar}; `slackwater jars {jar.parent}` fetches it"
            )
            raise SparkFailedError(
                f"{jar} is not the jar that was tested: its SHA-256 is {actual}, not {expected}.",
                f"{again}. If it comes back, the Maven repository has another file under its name:"
                " don't use that repository",
            )


def checksum(file: Path) -> str:
    """Return a file's SHA-256."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
