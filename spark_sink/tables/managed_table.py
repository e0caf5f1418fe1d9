"""A Delta or Iceberg table that a pipeline has made for one of Spanner's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import literal
from slackwater.spark_sink.tables.table_format import TableFormat

# The property that says which of Spanner's tables it was made for.
SOURCE_TABLE_PROPERTY: Final = "slackwater.table"


@dataclass(frozen=True, slots=True)
class AppendId:
    """What rows that are added to a table are known by: they are there once.

    Attributes:
        application: names whoever adds; each counts its own versions.
        version: rising.
        low_watermark: the epoch's, or the initial scan's.
        chunk: of an initial scan, its number.
    """

    application: str
    version: int
    low_watermark: datetime
    chunk: int | None = None


class ManagedTable(ABC):
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
        self._schema: StructType | None = None

    def ensure_columns(self, columns: Sequence[Column]) -> None:
        """Make the table, or add the columns that it has not.

        A column that Spanner's table has no more stays, without values in new rows.

        Raises:
            MirrorColumnError, ChangelogColumnError: a column has got another type.
            PublishError: two processes committed at once; the epoch is read again.
        """
        if self._schema is None and self._format.exists(self._spark, self._path):
            self._load_schema()
        if self._schema is None:
            self._create(self._column_definitions(columns))
            self._load_schema()
        if missing := self._missing_columns(columns):
            self._sql(f"ALTER TABLE {self._name} ADD COLUMNS ({missing})")
            self._load_schema()

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """Add rows in one commit; nothing happens if this version, or a later one, is there.

        Args:
            rows: in the table's columns.
            append_id: what they are known by.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        self._format.append(rows, self._path, append_id.application, append_id.version)

    @abstractmethod
    def _column_definitions(self, columns: Sequence[Column]) -> str:
        """The table's columns, as CREATE TABLE lists them."""

    @abstractmethod
    def _missing_columns(self, columns: Sequence[Column]) -> str:
        """Those that it has not, as ADD COLUMNS lists them; empty where it has all.

        Raises:
            MirrorColumnError, ChangelogColumnError: a column has got another type.
        """

    def _load_schema(self) -> None:
        self._schema = self._spark.table(self._name).schema

    def _create(self, declared: str) -> None:
        properties = {**self._properties, SOURCE_TABLE_PROPERTY: self._table}
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        self._sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({declared}) USING {self._format.using}"
            f" TBLPROPERTIES ({listed})"
        )

    def _sql(self, statement: str) -> None:
        with self._format.translating_conflicts(self._path):
            self._spark.sql(statement)
