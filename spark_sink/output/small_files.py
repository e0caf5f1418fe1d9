"""Small text files that are created once and never changed, on any file system that Spark reaches.

Two processes may create a file at the same time: a former owner that was frozen wakes up while the
new one works. One of them creates it, and the other one is told so.
"""

from __future__ import annotations

import errno
import os
import re
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from slackwater.spark_sink.java import hadoop_conf, java_array, java_raised, jvm_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL_SCHEME: Final = "file"
# Hadoop's, with others below its folders.
_MOUNTS: Final = "viewfs"
# On these a rename is atomic, and refused if the target exists.
ATOMIC_RENAME: Final = frozenset({LOCAL_SCHEME, "hdfs", _MOUNTS})
# Errors of file systems without hard links.
NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})
# Readers ignore what begins so, and it is not listed.
_UNFINISHED: Final = "_"


class SmallFiles(Protocol):
    """A folder of small text files."""

    def names(self) -> list[str]:
        """Return the names of the files, in any order; none if there is no folder."""

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

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:
        """Remove files, one after the other; one that does not exist is ignored.

        Args:
            names: the files' names.
            in_any_order: whether an interruption may leave any of them.
        """


def small_files(spark: SparkSession, path: str) -> SmallFiles:
    """Return a folder, which need not exist.

    Args:
        spark: the session, for its Hadoop configuration.
        path: a path or URL that Spark accepts.
    """
    folder = local_path(spark, path)
    if folder is not None:
        # Without Hadoop, which would write checksum files beside them.
        return LocalFiles(folder)
    root = jvm_of(spark).org.apache.hadoop.fs.Path(path)
    return HadoopFiles(spark, root, root.getFileSystem(hadoop_conf(spark)))


def local_path(spark: SparkSession, path: str) -> Path | None:
    """Return a path on a local disk as Python names it; None if it is elsewhere.

    Args:
        spark: the session, for its Hadoop configuration.
        path: a path or URL that Spark accepts.
    """
    root = jvm_of(spark).org.apache.hadoop.fs.Path(path)
    if root.getFileSystem(hadoop_conf(spark)).getScheme() != LOCAL_SCHEME:
        return None
    return Path(str(root.toUri().getPath()))


def has_atomic_rename(files: Any, path: Any) -> bool:
    """Return whether a folder becomes visible by one rename, and no existing one is replaced.

    Args:
        files: Hadoop's FileSystem.
        path: Hadoop's Path of a folder, which need not exist.
    """
    if (scheme := str(files.getScheme())) != _MOUNTS:
        return scheme in ATOMIC_RENAME
    folder = f"{files.makeQualified(path).toUri().getPath()}/"
    schemes = [
        str(target.getScheme())
        for mount in files.getMountPoints()
        for target in mount.getTargetFileSystemURIs()
        if folder.startswith(f"{str(mount.getMountedOnPath().toUri().getPath()).rstrip('/')}/")
    ]
    return all(mounted in ATOMIC_RENAME for mounted in schemes)


def rename_to_new(spark: SparkSession, source: Any, target: Any) -> None:
    """Rename a file or directory by Hadoop, and fail if the target exists.

    Hadoop's plain rename does not help: if the target is a directory, it copies the source into it
    on a local disk, and moves the source below it on HDFS.

    Raises:
        Py4JJavaError: the target exists, or the rename was refused.
    """
    hadoop = jvm_of(spark).org.apache.hadoop.fs
    options = hadoop.Options.Rename
    never_overwrite = java_array(spark, options, options.valueOf("NONE"))
    context = hadoop.FileContext.getFileContext(target.toUri(), hadoop_conf(spark))
    context.rename(source, target, never_overwrite)


def paths_of(jvm: Any, statuses: Any) -> Any:
    """Return the paths of an array of Hadoop's FileStatus as a Java collection."""
    count = len(statuses)
    status = jvm.java.lang.Class.forName("org.apache.hadoop.fs.FileStatus")
    # A connector's own array, as S3A's, is not one of FileStatus for py4j.
    plain = jvm.java.lang.reflect.Array.newInstance(status, count)
    jvm.java.lang.System.arraycopy(statuses, 0, plain, 0, count)
    paths = jvm.org.apache.hadoop.fs.FileUtil.stat2Paths(plain)
    # py4j finds no method of Java's that takes an array of objects.
    scala = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray(paths)
    return jvm.scala.jdk.javaapi.CollectionConverters.asJavaCollection(scala)


class LocalFiles:
    """A folder on a local disk; see SmallFiles.

    Args:
        folder: its path.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        """Return the names of the files, in any order."""
        try:
            return [name for name in os.listdir(self._folder) if name[0] not in "._"]
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
        unfinished, final = self._folder / f".{name}.{uuid.uuid4().hex}", self._folder / name
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
            return None
        finally:
            unfinished.unlink(missing_ok=True)
        return self.tag(name)

    def tag(self, name: str) -> str | None:
        """Return what identifies a file's content, which never changes; see CommitFiles."""
        try:
            status = (self._folder / name).stat()
        except FileNotFoundError:
            return None
        return f"{status.st_ino}-{status.st_mtime_ns}-{status.st_size}"

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:  # noqa: ARG002
        """Remove files; see SmallFiles."""
        for name in names:
            (self._folder / name).unlink(missing_ok=True)


class HadoopFiles:
    """A folder on a file system of Hadoop's; see SmallFiles.

    On an object store a file becomes visible whole, and the store's connector makes sure that it is
    new. HDFS shows a file while it grows, so there it is renamed when it is whole.

    Args:
        spark: the session, for its Hadoop configuration.
        root: the folder, a Hadoop Path.
        files: its FileSystem.
    """

    def __init__(self, spark: SparkSession, root: Any, files: Any) -> None:
        self._spark = spark
        self._jvm = jvm_of(spark)
        self._root = root
        self._files = files

    def names(self) -> list[str]:
        """Return the names of the files, in any order."""
        if not self._files.exists(self._root):
            return []
        # As one text, because each name would be three calls.
        listed = paths_of(self._jvm, self._files.listStatus(self._root)).toString()
        return re.findall(r"/([^/_.,][^/,]*)(?=, |\]$)", str(listed))

    def read(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist."""
        try:
            stream = self._files.open(self._path(name))
        except java_raised():
            if self._files.exists(self._path(name)):
                raise
            return None
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def read_all(self, names: Sequence[str]) -> list[str | None]:
        """Return the texts of files, None for one that does not exist."""
        return [self.read(name) for name in names]

    def create(self, name: str, text: str, *, is_durable: bool = False) -> str | None:  # noqa: ARG002
        """Create a file; see SmallFiles."""
        final = self._path(name)
        is_renamed = has_atomic_rename(self._files, self._root)
        made = self._path(f"{_UNFINISHED}{uuid.uuid4().hex}") if is_renamed else final
        try:
            stream = self._files.create(made, False)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()
            if is_renamed:
                rename_to_new(self._spark, made, final)
        except java_raised():
            if not self._files.exists(final):
                raise
            if is_renamed:
                self._files.delete(made, False)
            return None
        return name

    def remove(self, names: Iterable[str], *, in_any_order: bool = False) -> None:  # noqa: ARG002
        """Remove files; see SmallFiles."""
        for name in names:
            self._files.delete(self._path(name), False)

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, name)
