"""What a table format has to offer so that epochs land in it once and mirrors can be kept in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final, Protocol

from pyspark.sql import DataFrame, SparkSession

from slackwater.spark_sink.output.staging import StagedFiles

LOW_WATERMARK_PROPERTY: Final = "slackwater.low_watermark"


class TableFormat(Protocol):
    """Tables of one format, each named by its directory.

    Attributes:
        using: the format's name in Spark SQL.
    """

    @property
    def using(self) -> str:
        """See the class."""

    def name(self, spark: SparkSession, path: str) -> str:
        """The table as Spark SQL names it, quoted."""

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Whether a table is there, with its first commit."""

    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """The names of the tables in a catalog; None where tables are directories."""

    def append(
        self,
        rows: DataFrame,
        path: str,
        application: str,
        version: int,
        staged: StagedFiles | None = None,
    ) -> None:
        """Append rows in one commit; nothing happens if this version, or a later one, is there.

        Args:
            rows: of the table's columns; a changelog's table is made with the first of them.
            path: the table's.
            application: names whoever writes; each counts its own versions.
            version: rising.
            staged: Parquet files of these rows and no others, which may become the table's.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """

    def compact(self, spark: SparkSession, path: str) -> None:
        """Make few large files of many small ones, in a commit of its own.

        Raises:
            PublishError: two processes committed at once.
        """

    def last_low_watermark(self, spark: SparkSession, path: str) -> datetime | None:
        """That of the newest epoch with records in a changelog; None where there is no table."""

    def translating_conflicts(self, path: str) -> AbstractContextManager[None]:
        """Two processes that commit at once are an error of their own.

        Raises:
            PublishError: what was committed inside was refused, for a commit beside it.
        """

    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> AbstractContextManager[None]:
        """Inside, a MERGE may be repeated for the same low watermark and changes nothing then."""

    def publish_watermark(self, spark: SparkSession, path: str, low_watermark: str) -> None:
        """Let a table's properties say up to when it has all changes, in RFC 3339.

        Raises:
            PublishError: two processes committed at once.
        """

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """A table as it stood at the low watermark that it states, and this; None without one."""
