"""How an epoch becomes visible: a directory under a staging name, renamed when it is whole.

Spark's own file sink keeps a log of every file ever written, which grows without bound; and a
reader who lists its directory sees half an epoch. A rename is all or nothing on a local disk and
on HDFS, and the name is the epoch's low watermark, so that writing an epoch again can't double it.

Two processes may write the same epoch at once: a former owner that was frozen wakes up while the
new one replays. Each has a staging directory of its own, and only one rename can succeed.
"""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import PublishError

# Names that start with an underscore are hidden from Spark, pyarrow and DuckDB.
STAGING_FOLDER: Final = "_staging"
_ATOMIC_RENAME: Final = frozenset({"file", "hdfs", "viewfs"})


def epoch_name(low_watermark: datetime, chunk: int | None = None) -> str:
    """The directory of an epoch, or of a chunk of an initial scan; names sort as the epochs do.

    The value is made so that no reader takes it for a number or a date: it stays a string.
    """
    suffix = "" if chunk is None else f".{chunk:06d}"
    return f"epoch={low_watermark.astimezone(UTC):%Y%m%dT%H%M%S.%f}Z{suffix}"


def parse_epoch_name(name: str) -> datetime | None:
    """The low watermark that a directory's name states, None where it is no epoch's."""
    try:
        return datetime.strptime(name, "epoch=%Y%m%dT%H%M%S.%fZ").replace(tzinfo=UTC)
    except ValueError:
        return None


class EpochDirectory:
    """The output's root directory, on any file system that Spark reaches.

    Args:
        spark: for its Hadoop configuration.
        path: a path or URL as Spark takes it.
        owner: names the staging directory of whoever writes; no two processes share one.
    """

    def __init__(self, spark: SparkSession, path: str, owner: str) -> None:
        jvm: Any = spark._jvm
        jsc: Any = spark._jsc
        self._jvm = jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._conf = jsc.hadoopConfiguration()
        self._root = jvm.org.apache.hadoop.fs.Path(path)
        self._files: Any = self._root.getFileSystem(self._conf)
        self._owner = owner

    def staging(self, epoch_id: int) -> str:
        """Where to write an epoch before it is whole."""
        return str(self._path(f"{STAGING_FOLDER}/{self._owner}/{epoch_id}").toString())

    def remove_other_staging(self) -> None:
        """Remove what former owners left unfinished.

        One that still writes there fails, as it should: it is not the owner any more. Nor does it
        find a part of its files while the others are being removed: they get another name first.
        """
        folder = self._path(STAGING_FOLDER)
        if self._files.exists(folder):
            for status in self._files.listStatus(folder):
                if status.getPath().getName() != self._owner:
                    removed = self._path(f"{STAGING_FOLDER}/{uuid.uuid4().hex}")
                    is_renamed = self._files.rename(status.getPath(), removed)
                    self._files.delete(removed if is_renamed else status.getPath(), True)

    def publish(self, epoch_id: int, low_watermark: datetime, *, chunk: int | None = None) -> bool:
        """Make a staged epoch visible; False if it was visible already.

        Args:
            epoch_id: as it was staged.
            low_watermark: the epoch's.
            chunk: its number, where it is a part of an initial scan.

        On object stores a rename is not atomic: a crash may leave a part of an epoch, which the
        replay replaces, and a reader may see its files come one by one.

        Raises:
            PublishError: the rename was refused.
        """
        staged = self._path(f"{STAGING_FOLDER}/{self._owner}/{epoch_id}")
        final = self._path(epoch_name(low_watermark, chunk))
        if self._files.getScheme() not in _ATOMIC_RENAME:
            self._files.delete(final, True)
        elif self._files.exists(final) or not self._rename(staged, final):
            # It got there whole, before a crash or by another process; what is staged is the same.
            self._files.delete(staged, True)
            return False
        else:
            return True
        if not self._files.rename(staged, final):
            raise PublishError(
                f"renaming {staged.toString()} to {final.toString()} was refused.",
                "Check that the directory is writable and on one file system",
            )
        return True

    def _rename(self, staged: Any, final: Any) -> bool:
        """One atomic rename; False if the target has come into being meanwhile.

        Hadoop's own rename of a local directory copies into a target that exists, HDFS's nests.
        """
        try:
            if self._files.getScheme() == "file":
                os.rename(*(self._local(path) for path in (staged, final)))
                return True
            options = self._jvm.org.apache.hadoop.fs.Options.Rename
            never = self._gateway.new_array(options, 1)
            never[0] = options.valueOf("NONE")
            context = self._jvm.org.apache.hadoop.fs.FileContext
            context.getFileContext(self._root.toUri(), self._conf).rename(staged, final, never)
        except (OSError, Py4JJavaError) as error:
            if self._files.exists(final):
                return False
            reason = error.strerror if isinstance(error, OSError) else error.java_exception
            raise PublishError(
                f"renaming {staged.toString()} to {final.toString()} was refused: {reason}.",
                "Check that the directory is writable and on one file system",
            ) from error
        return True

    def last_low_watermark(self) -> datetime | None:
        """That of the newest visible epoch, in whole microseconds; None where there is none."""
        return max(filter(None, map(parse_epoch_name, self.list_names())), default=None)

    def list_names(self) -> list[str]:
        """What lies in the directory; nothing where it is not there."""
        if not self._files.exists(self._root):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(self._root)]

    def discard(self, epoch_id: int) -> None:
        """Remove a staged epoch; nothing happens if there is none."""
        self._files.delete(self._path(f"{STAGING_FOLDER}/{self._owner}/{epoch_id}"), True)

    def _path(self, below: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self._root, below)

    def _local(self, path: Any) -> str:
        return str(self._files.makeQualified(path).toUri().getPath())
