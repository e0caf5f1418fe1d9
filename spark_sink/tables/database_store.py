"""The base of the stores that keep tables in a database, with one log for all of them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.table_names import plain_name
from slackwater.spark_sink.tables.table_changes import SOURCE_TABLE_PROPERTY
from slackwater.spark_sink.tables.table_store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.tables.database_access import DatabaseAccess, DatabaseLog


class DatabaseStore(TableStore):
    """The tables of one pipeline in a database."""

    has_one_log: ClassVar[bool] = True

    @property
    @abstractmethod
    def log(self) -> DatabaseLog:
        """The log of all tables."""

    @abstractmethod
    def access(self, spark: SparkSession, path: str, application: str) -> DatabaseAccess:
        """Return the access to a table; see TableStore."""

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:
        """Take the log over; see TableStore."""
        return self.log.take_over(logged)

    def at_once(
        self,
        low_watermark: datetime,
        *,
        chunk: int | None = None,
        is_stated: bool = False,
        incomplete: Collection[str] = (),
    ) -> AbstractContextManager[None]:
        """Commit to all tables at the end; see TableStore."""
        return self.log.committing(
            low_watermark, chunk, is_stated=is_stated, incomplete=sorted(incomplete)
        )

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists; see TableStore."""
        return self.access(spark, path, "").exists()

    def list_tables(self, spark: SparkSession) -> list[str]:  # noqa: ARG002
        """Return the plain names of the pipeline's tables; see TableStore."""
        sources = (of.get(SOURCE_TABLE_PROPERTY) for of in self.log.own_properties())
        return [plain_name(source) for source in sources if source is not None]

    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:  # noqa: ARG002
        """Return none: a database keeps versions in its own way."""
        return {}

    def read(self, spark: SparkSession, path: str, within: RowRange | None = None) -> DataFrame:
        """Read a table as it is now; see TableStore."""
        return self.access(spark, path, "").read(spark, within)

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read a table, and the low watermark of all, at one moment; see TableStore."""
        access = self.access(spark, path, "")
        return access.read_at_watermark(spark) if access.exists() else None

    def stated(self, spark: SparkSession, path: str) -> str | None:
        """Return the low watermark of all; see TableStore."""
        access = self.access(spark, path, "")
        return access.stated() if access.exists() else None

    def version_at(
        self,
        spark: SparkSession,  # noqa: ARG002
        path: str,
        application: str,  # noqa: ARG002
        low_watermark: datetime,  # noqa: ARG002
    ) -> int | None:
        """Refuse: a database has no versions by Spanner's time; see TableStore."""
        raise AsOfTimeError(f"{path} has no versions by Spanner's time.")
