"""A Delta or Iceberg table that a pipeline creates and alters for one of Spanner's tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import ChangelogColumnError, ColumnNameError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import literal
from slackwater.spark_sink.table_names import same_name_error
from slackwater.spark_sink.tables.table_format import TableFormat

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

# The table property with the full name of the Spanner table that it was created for.
SOURCE_TABLE_PROPERTY: Final = "slackwater.table"


def source_table(spark: SparkSession, name: str) -> str | None:
    """Return the full name of the Spanner table that a table was created for; None for others.

    Args:
        spark: a session with the format's jar.
        name: the table's quoted name.
    """
    properties = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
    return next((row["value"] for row in properties if row["key"] == SOURCE_TABLE_PROPERTY), None)


def require_possible_names(
    table: str,
    columns: Sequence[Column],
    table_format: TableFormat,
    properties: Mapping[str, str],
) -> None:
    """Refuse a column whose name the format can't hold.

    Args:
        table: the full name of the Spanner table.
        columns: the table's.
        table_format: of the managed table.
        properties: with which the managed table is created.

    Raises:
        ColumnNameError: there is such a column.
    """
    key, values = table_format.names_any_column
    if properties.get(key) in values:
        return
    for column in columns:
        if any(mark in table_format.marks_refused for mark in column.name):
            raise ColumnNameError(
                f"column {table}.{column.name!r}: {table_format.using} does not take that name.",
                f"Set {key}: {values[0]} in sink.table_properties before the table is made, leave"
                " the column out with filter.exclude_columns, or rename it",
            )


@dataclass(frozen=True, slots=True)
class AppendId:
    """Identifies an append to a table, so that repeating it changes nothing.

    Attributes:
        application: names the writer; each application counts its own versions.
        version: rises with each append of the application.
        low_watermark: the epoch's, or the initial scan's.
        chunk: the chunk's number in an initial scan; None for an epoch.
    """

    application: str
    version: int
    low_watermark: datetime
    chunk: int | None = None


class ManagedTable(ABC):
    """The parts that a mirror and a typed changelog share.

    Args:
        spark: a session with the format's jar.
        path: the table's directory.
        table: the full name of the Spanner table.
        table_format: the format of the managed table.
        properties: the properties with which the table is created.
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

    @property
    def table(self) -> str:
        """The full name of the Spanner table."""
        return self._table

    def ensure_columns(self, columns: Sequence[Column]) -> None:
        """Create the table, or add the columns that it lacks.

        A column that was dropped in Spanner stays, without values in new rows.

        Raises:
            ChangelogColumnError: a column's type has changed.
            ColumnNameError: the format can't hold the name of a column.
            TableNameError: the table is that of another one of Spanner's.
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        require_possible_names(self._table, columns, self._format, self._properties)
        if self._schema is None and self._exists():
            self._require_own()
            self._load_schema()
        if self._schema is None:
            self._create(columns)
            self._load_schema()
        if self._fits(columns):
            return
        # Somebody may have altered the table since its schema was loaded.
        self._load_schema()
        self._make_way(columns)
        if not self._fits(columns):
            self._add_columns(columns)
            self._load_schema()

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has this version or a later one.

        Args:
            rows: with the table's columns.
            append_id: identifies the append.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        self._format.append(rows, self._path, append_id.application, append_id.version)

    @abstractmethod
    def _column_definitions(self, columns: Sequence[Column]) -> str:
        """Return the columns as CREATE TABLE lists them."""

    @abstractmethod
    def _missing_columns(self, columns: Sequence[Column]) -> str:
        """Return the missing columns as ADD COLUMNS lists them; empty if there are none.

        Raises:
            ChangelogColumnError: a column's type has changed.
        """

    def _make_way(self, columns: Sequence[Column]) -> None:
        """Move columns of former types out of the way, if the kind of table can."""
        del columns

    def _fits(self, columns: Sequence[Column]) -> bool:
        try:
            return not self._missing_columns(columns)
        except ChangelogColumnError:
            return False

    def _require_own(self) -> None:
        """Refuse the table of another one of Spanner's, as where file systems ignore case."""
        other = self._source_table()
        if other not in {None, self._table}:
            raise same_name_error(
                str(other),
                self._table,
                f"{self._path} as their table",
                f"If {other!r} is gone for good, move its table away",
            )

    def _exists(self) -> bool:
        return self._format.exists(self._spark, self._path)

    def _source_table(self) -> str | None:
        return source_table(self._spark, self._name)

    def _load_schema(self) -> None:
        self._schema = self._spark.table(self._name).schema

    def _create(self, columns: Sequence[Column]) -> None:
        properties = {**self._properties, SOURCE_TABLE_PROPERTY: self._table}
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        self._sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({self._column_definitions(columns)})"
            f" USING {self._format.using} TBLPROPERTIES ({listed})"
        )

    def _add_columns(self, columns: Sequence[Column]) -> None:
        """Add those that the table lacks.

        Raises:
            ChangelogColumnError: a column's type has changed.
        """
        missing = self._missing_columns(columns)
        self._sql(f"ALTER TABLE {self._name} ADD COLUMNS ({missing})")

    def _sql(self, statement: str) -> None:
        with self._format.translating_conflicts(self._path):
            self._spark.sql(statement)
