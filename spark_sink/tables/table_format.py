"""The protocol of a table format: what changelogs and mirrors need of it."""

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
        using: the format's name in Spark SQL, as in CREATE TABLE ... USING.
    """

    @property
    def using(self) -> str:
        """The format's name in Spark SQL."""

    def name(self, spark: SparkSession, path: str) -> str:
        """Return the table's quoted name in Spark SQL."""

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists and has its first commit."""

    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """Return the names of the catalog's tables; None if tables are directories."""

    def append(
        self,
        rows: DataFrame,
        path: str,
        application: str,
        version: int,
        staged: StagedFiles | None = None,
    ) -> None:
        """Append rows in one commit, unless the table has this version or a later one.

        Args:
            rows: with the table's columns; a missing table is created with them.
            path: the table's directory.
            application: names the writer; each application counts its own versions.
            version: rises with each append of the application.
            staged: Parquet files with exactly these rows, which may become the table's own.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """

    def compact(self, spark: SparkSession, path: str) -> None:
        """Rewrite many small files as few large ones, in a commit of its own.

        Raises:
            PublishError: two processes committed at the same time.
        """

    def last_low_watermark(self, spark: SparkSession, path: str) -> datetime | None:
        """Return that of a changelog's latest epoch with records; None without a table."""

    def translating_conflicts(self, path: str) -> AbstractContextManager[None]:
        """Turn the format's commit conflicts, raised inside, into a PublishError.

        Raises:
            PublishError: a commit inside was refused because of a concurrent one.
        """

    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> AbstractContextManager[None]:
        """Make a MERGE inside change nothing if it is repeated for the same low watermark."""

    def publish_watermark(self, spark: SparkSession, path: str, low_watermark: str) -> None:
        """Write to a table's properties up to when it has all changes, in RFC 3339.

        Raises:
            PublishError: two processes committed at the same time.
        """

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read a table at its published low watermark, and return both; None without one."""
