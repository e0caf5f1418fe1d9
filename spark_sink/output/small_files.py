"""Small text files that are created once and never changed, in any place.

Two processes may create a file at the same time: a former owner that was frozen wakes up while the
new one works. One of them creates it, and the other one is told so.
"""

import errno
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from slackwater.spark_sink.java import hadoop_conf, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_SCHEME: Final = "file"
# Errors of file systems without hard links.
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class SmallFiles(Protocol):
    """A folder of small text files."""

    def names(self, after: str = "") -> list[str]:
        """Return the names of the files, in any order; none if there is no folder.

        Args:
            after: only names after this one, as texts are compared.
        """

    def read(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist."""

    def read_all(self, names: Sequence[str]) -> list[str | None]:
        """Return the texts of files, None for one that does not exist."""

    def create(self, name: str, text: str, *, is_durable: bool = False) -> str | None:
        """Create a file, and return a tag of its content.

        Args:
            name: the file's.
            text: all of it.
            is_durable: wait until its content survives a power cut, if its name does.

        Returns:
            None if there is one of this name, which is left as it is.
        """

    def tag(self, name: str) -> str | None:
        """Return the tag of a file's content, as create() does; None if it does not exist."""

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:
        """Remove files, one after the other; one that does not exist is ignored.

        Args:
            names: the files' names.
            in_any_order: whether an interruption may leave any of them.
        """


def local_path(spark: "SparkSession", path: str) -> Path | None:
    """Return a path on a local disk as Python names it; None if it is elsewhere.

    Args:
        spark: the session, for its Hadoop configuration.
        path: a path or URL that Spark accepts.
    """
    root = jvm_of(spark).org.apache.hadoop.fs.Path(path)
    if root.getFileSystem(hadoop_conf(spark)).getScheme() != LOCAL_SCHEME:
        return None
    return Path(str(root.toUri().getPath()))


def without_scheme(path: str) -> str:
    """Return a path on a disk, as Hadoop takes it, without file: or file:// before it."""
    return re.sub(rf"^{LOCAL_SCHEME}:(?=/)(//(?=/))?", "", path)


class LocalFiles:
    """A folder on a local disk; see SmallFiles.

    Args:
        folder: its path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, after: str = "") -> list[str]:
        """Return the names of the files, in any order; see SmallFiles."""
        try:
            names = os.listdir(self._folder)
            return [name for name in names if name[0] not in "._" and name > after]
        except FileNotFoundError:
            return []

    def read(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist."""
        try:
            return (self._folder / name).read_text()
        except FileNotFoundError:
            return None

    def read_all(self, names: Sequence[str]) -> list[str | None]:
        """Return the texts of files, None for one that does not exist."""
        return [self.read(name) for name in names]

    def create(self, name: str, text: str, *, is_durable: bool = False) -> str | None:
        """Create a file, whole if the file system has hard links; see SmallFiles."""
        self._folder.mkdir(parents=True, exist_ok=True)
        unfinished, final = self._folder / f".{uuid.uuid4().hex}", self._folder / name
        try:
            with unfinished.open("w") as out:
                out.write(text)
                out.flush()
                if is_durable:
                    os.fsync(out.fileno())
            # A link fails if the name is taken, and a rename does not.
            try:
                final.hardlink_to(unfinished)
            except OSError as error:
                if error.errno not in NO_LINKS:
                    raise
                with final.open("x") as out:
                    out.write(text)
        except FileExistsError:
            # On NFS a client that did not get the answer asks again, and is refused by its own.
            if not _is_same(final, unfinished):
                return None
        finally:
            unfinished.unlink(missing_ok=True)
        return self.tag(name)

    def tag(self, name: str) -> str | None:
        """Return the tag of a file's content, which never changes; see SmallFiles."""
        try:
            status = (self._folder / name).stat()
        except FileNotFoundError:
            return None
        return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:  # noqa: ARG002
        """Remove files; see SmallFiles."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


def _is_same(file: Path, other: Path) -> bool:
    try:
        return file.samefile(other)
    except FileNotFoundError:
        return False
