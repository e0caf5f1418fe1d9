"""A Delta or Iceberg table that a pipeline has made for one of Spanner's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from spark_sink.columns import Column
from spark_sink.sql_text import literal
from spark_sink.table_format import TableFormat

# The property that says which of Spanner's tables it was made for.
TABLE: Final = "slackwater.table"


class OwnTable(ABC):
    """What mirrors and typed changelogs of one table share.

    Args:
        spark: a session with the format's jar.
        path: the table's directory.
        table: the full name in Spanner.
        table_format: the table's.
        properties: of the table, where it has to be made.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableFormat,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._path = path
        self._table = table
        self._format = table_format
        self._name = table_format.name(spark, path)
        self._properties = dict(properties or {})

    @abstractmethod
    def require(self, columns: Sequence[Column]) -> None:
        """Make the table, or add the columns that it has not.

        A column that Spanner's table has no more stays, without values in new rows.

        Raises:
            MirrorColumnError, ChangelogColumnError: a column has got another type.
            PublishError: two processes committed at once; the epoch is read again.
        """

    def append(self, rows: DataFrame, application: str, version: int) -> None:
        """Add rows in one commit; nothing happens if this version, or a later one, is there.

        Args:
            rows: in the table's columns.
            application: names whoever writes; each counts its own versions.
            version: rising.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        self._format.append(rows, self._path, application, version)

    def _exists(self) -> bool:
        return self._format.exists(self._spark, self._path)

    def _create(self, declared: str) -> None:
        properties = {**self._properties, TABLE: self._table}
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        self._sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({declared}) USING {self._format.using}"
            f" TBLPROPERTIES ({listed})"
        )

    def _add_columns(self, declared: str) -> None:
        self._sql(f"ALTER TABLE {self._name} ADD COLUMNS ({declared})")

    def _sql(self, statement: str) -> None:
        with self._format.naming_conflicts(self._path):
            self._spark.sql(statement)
