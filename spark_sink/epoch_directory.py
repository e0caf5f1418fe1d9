"""How an epoch becomes visible: a directory under a staging name, renamed when it is whole.

Spark's own file sink keeps a log of every file ever written, which grows without bound; and a
reader who lists its directory sees half an epoch. A rename is all or nothing on a local disk and
on HDFS, and the name is the epoch's low watermark, so that writing an epoch again can't double it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import SparkSession

from spark_sink.errors import PublishError

# Names that start with an underscore are hidden from Spark, pyarrow and DuckDB.
STAGING: Final = "_staging"
_ATOMIC_RENAME: Final = frozenset({"file", "hdfs", "viewfs"})


def epoch_name(low_watermark: datetime) -> str:
    """The directory of an epoch; names sort as the epochs do.

    The value is made so that no reader takes it for a number or a date: it stays a string.
    """
    return f"epoch={low_watermark.astimezone(UTC):%Y%m%dT%H%M%S.%f}Z"


def low_watermark_of(name: str) -> datetime | None:
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
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        jvm: Any = spark._jvm
        self._jvm_path = jvm.org.apache.hadoop.fs.Path
        self._root = self._jvm_path(path)
        jsc: Any = spark._jsc
        self._files: Any = self._root.getFileSystem(jsc.hadoopConfiguration())

    def staging(self, epoch_id: int) -> str:
        """Where to write an epoch before it is whole."""
        return str(self._jvm_path(self._root, f"{STAGING}/{epoch_id}").toString())

    def publish(self, epoch_id: int, low_watermark: datetime) -> bool:
        """Make a staged epoch visible; False if it was visible already.

        Raises:
            PublishError: the rename was refused.
        """
        staged = self._jvm_path(self.staging(epoch_id))
        final = self._jvm_path(self._root, epoch_name(low_watermark))
        if self._files.exists(final):
            if self._files.getScheme() in _ATOMIC_RENAME:
                # It got there whole, just before a crash; what is staged is the same again.
                self._files.delete(staged, True)
                return False
            # Here a crash may have left a part of it.
            self._files.delete(final, True)
        if not self._files.rename(staged, final):
            raise PublishError(
                f"renaming {staged.toString()} to {final.toString()} was refused.",
                "Check that the directory is writable and on one file system",
            )
        return True

    def last_low_watermark(self) -> datetime | None:
        """That of the newest visible epoch, in whole microseconds; None where there is none."""
        if not self._files.exists(self._root):
            return None
        names = (status.getPath().getName() for status in self._files.listStatus(self._root))
        return max(filter(None, map(low_watermark_of, names)), default=None)

    def discard(self, epoch_id: int) -> None:
        """Remove a staged epoch; nothing happens if there is none."""
        self._files.delete(self._jvm_path(self.staging(epoch_id)), True)
