"""What is staged beside tables, and dead letters, on any file system that Spark reaches.

Two processes may stage the same epoch at the same time: a former owner that was frozen wakes up
while the new one replays. Each has its own staging directory. What was renamed to its name is whole
on a local disk and on HDFS, where a rename is atomic; an object store copies a folder file by file.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.java import (
    hadoop_conf,
    java_exception,
    java_raised,
    jvm_of,
)
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER
from slackwater.spark_sink.output.small_files import (
    LOCAL_SCHEME,
    has_atomic_rename,
    rename_to_new,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_OF_TASKS: Final = "tasks"
_HELD: Final = "_held"


@dataclass(frozen=True, slots=True)
class TaskFile:
    """A file that a task has written.

    Attributes:
        name: in the tasks' folder.
        size: in bytes.
    """

    name: str
    size: int


class EpochDirectory:
    """The output's root directory, on any file system that Spark reaches.

    Args:
        spark: the session, for its Hadoop configuration.
        path: a path or URL that Spark accepts.
        owner: names this process's staging directory; each process has its own.
    """

    def __init__(self, spark: SparkSession, path: str, owner: str) -> None:
        self._spark = spark
        self._jvm = jvm_of(spark)
        self._conf = hadoop_conf(spark)
        self._root = self._jvm.org.apache.hadoop.fs.Path(path)
        self._files: Any = self._root.getFileSystem(self._conf)
        self._owner = owner

    def hold_staging(self) -> None:
        """Leave a mark, before Spark stages an epoch, that goes when somebody removes the staging.

        Spark, which finds its folder gone as it writes, makes another and completes what is left.
        Where folders are renamed; elsewhere none is published.
        """
        if self.is_atomic:
            self._files.createNewFile(self._staged(_HELD))

    def require_held(self, epoch_id: int) -> None:
        """Check, after Spark has staged an epoch, that the mark is there: then the epoch is whole.

        Who removes the staging renames all of it first. So if that comes after this, the epoch has
        no folder any more that could be published.

        Raises:
            PublishError: it is gone.
        """
        if self.is_atomic and not self._files.exists(self._staged(_HELD)):
            raise PublishError(
                f"{self.staging(epoch_id)} may have a part of an epoch: its folder was removed as"
                " it was staged.",
                "Another process may have taken the pipeline over; the epoch is read again",
            )

    def remove_staging(self) -> None:
        """Remove this process's own staging."""
        self._files.delete(self._staged(), True)

    def staging(self, epoch_id: int) -> str:
        """Return the directory in which to stage an epoch."""
        return str(self._path_of(epoch_id).toString())

    def staging_beside_epochs(self, name: str) -> str:
        """Return the directory in which to stage something that belongs to no epoch."""
        return str(self._staged(name).toString())

    def of_tasks(self) -> str | None:
        """Return the folder in which tasks stage files by themselves; None if it is not local."""
        folder = self._staged(_OF_TASKS)
        return self._local(folder) if self._is_local else None

    def take_files(self, epoch_id: int, files: Iterable[TaskFile]) -> None:
        """Make files that tasks have staged an epoch's, and remove the others of failed attempts.

        Raises:
            PublishError: one is not there, or not whole.
        """
        tasks, staged = Path(self.of_tasks() or ""), Path(self._local(self._path_of(epoch_id)))
        shutil.rmtree(staged, ignore_errors=True)
        # Also for no files: what is staged is read, or renamed.
        staged.mkdir(parents=True)
        for file in files:
            try:
                (tasks / file.name).rename(staged / file.name)
                size = (staged / file.name).stat().st_size
            except OSError as error:
                raise PublishError(
                    f"a task's file {tasks / file.name} can't be staged: {error.strerror}.",
                    "Each executor needs the same directory. Or another process has taken the"
                    " pipeline over; the epoch is read again",
                ) from error
            if size != file.size:
                raise PublishError(
                    f"{staged / file.name} has {size} of the {file.size} bytes that a task wrote.",
                    "The epoch is read again",
                )
        shutil.rmtree(tasks, ignore_errors=True)

    def remove_other_staging(self) -> None:
        """Remove what former owners staged and did not finish.

        One that still works may read what is left of an epoch, so Staging counts what it reads. On
        a local disk and on HDFS none can rename what is left: it has another name before it is
        removed. An object store would copy it for that, and show as much of it meanwhile.
        """
        folder = self._path(STAGING_FOLDER)
        if not self._files.exists(folder):
            return
        for status in self._files.listStatus(folder):
            removed = status.getPath()
            if removed.getName() == self._owner:
                continue
            if self.is_atomic:
                renamed = self._path(f"{STAGING_FOLDER}/{uuid.uuid4().hex}")
                if not self._files.rename(removed, renamed) and self._files.exists(removed):
                    raise PublishError(
                        f"{removed.toString()} can't be removed: the file system does not say why.",
                        "Check that the directory is writable",
                    )
                removed = renamed
            self._files.delete(removed, True)

    def publish_as(self, epoch_id: int, name: str) -> bool:
        """Make a staged folder visible, and return False if one of its name already was.

        Args:
            epoch_id: as it was staged.
            name: it may have folders. Where is_atomic holds, this is one rename.

        Raises:
            PublishError: the rename was refused.
        """
        staged = self._path_of(epoch_id)
        final = self._path(name)
        if "/" in name:
            self._files.mkdirs(final.getParent())
        if self._files.exists(final) or not self._rename(staged, final):
            # The complete epoch is there, from before a crash or by another process.
            self._files.delete(staged, True)
            return False
        return True

    def publish_file(self, epoch_id: int, name: str) -> None:
        """Make the only file of a staged folder visible, unless it already is.

        An object appears whole. So one that has the name is complete, and is left alone. Another
        process may give the same file its name at the same time: one then replaces the other.

        Args:
            epoch_id: as it was staged.
            name: the file's, with folders. Files of one name have to be equal.

        Raises:
            PublishError: the rename was refused, or the staged file is gone.
        """
        staged, final = self._path_of(epoch_id), self._path(name)
        if not self._files.exists(final):
            self._rename_file(staged, final)
        self._files.delete(staged, True)

    def _rename_file(self, staged: Any, final: Any) -> None:
        """Rename a folder's only file; if that fails the target may have been created meanwhile."""
        reason: Any = "the store does not say why"
        try:
            statuses = self._files.listStatus(staged)
            files = [s.getPath() for s in statuses if not s.getPath().getName().startswith("_")]
            if len(files) != 1:
                reason = f"{staged.toString()} has {len(files)} files"
            else:
                self._files.mkdirs(final.getParent())
                if self._files.rename(files[0], final):
                    return
        except java_raised() as error:
            reason = java_exception(error)
        if not self._files.exists(final):
            raise PublishError(
                f"a staged file can't be renamed to {final.toString()}: {reason}.",
                "Another process may have taken the pipeline over; the epoch is read again",
            )

    def _rename(self, staged: Any, final: Any) -> bool:
        """Rename atomically, and return False if the target has been created meanwhile."""
        try:
            if self._is_local:
                os.rename(*(self._local(path) for path in (staged, final)))
            else:
                rename_to_new(self._spark, staged, final)
        except (OSError, java_raised()) as error:
            if self._files.exists(final):
                return False
            reason = error.strerror if isinstance(error, OSError) else java_exception(error)
            raise PublishError(
                f"renaming {staged.toString()} to {final.toString()} was refused: {reason}.",
                "Check that the directory is writable and on one file system",
            ) from error
        return True

    @property
    def is_atomic(self) -> bool:
        """Whether a folder becomes visible by one atomic rename."""
        return has_atomic_rename(self._files, self._root)

    def list_names(self) -> list[str]:
        """Return the names in the directory; none if it does not exist."""
        if not self._files.exists(self._root):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._root)]

    def discard(self, epoch_id: int) -> None:
        """Remove a staged epoch, if there is one."""
        self._files.delete(self._path_of(epoch_id), True)

    @property
    def _is_local(self) -> bool:
        return bool(self._files.getScheme() == LOCAL_SCHEME)

    def _path_of(self, epoch_id: int) -> Any:
        return self._staged(str(epoch_id))

    def _staged(self, *names: str) -> Any:
        """Return what has a name in this process's staging directory; without one, all of it."""
        return self._path("/".join([STAGING_FOLDER, self._owner, *names]))

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, below)

    def _local(self, path: Any) -> str:
        return str(self._files.makeQualified(path).toUri().getPath())
