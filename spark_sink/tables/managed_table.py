"""A Delta or Iceberg table that a pipeline creates and alters for one of Spanner's tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from slackwater.spark_sink.errors import ChangelogColumnError, ColumnNameError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.table_names import same_name_error
from slackwater.spark_sink.tables.delta import Delta
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
            remedy = "leave the column out with filter.exclude_columns, or rename it"
            if values:
                setting = f"{key}: {values[0]} in sink.table_properties"
                remedy = f"set {setting} before the table is made, {remedy}"
            raise ColumnNameError(
                f"column {table}.{column.name!r}: {table_format.using} does not take that name.",
                f"{remedy[0].upper()}{remedy[1:]}",
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


class MissingColumn(NamedTuple):
    """A column, or a field of a struct, that a table lacks.

    Attributes:
        struct: the column that the field belongs to; None for a column.
        name: not quoted.
        kind: the type in Spark SQL.
    """

    struct: str | None
    name: str
    kind: str


class TableAccess(Protocol):
    """How a managed table is created, altered and appended to."""

    def exists(self) -> bool:
        """Return whether there is a table that this process may write to."""

    def source_table(self) -> str | None:
        """Return the full name of the Spanner table that it was created for; None for others."""

    def schema(self) -> StructType:
        """Return its columns as they are now."""

    def create(self, definitions: str, properties: Mapping[str, str]) -> None:
        """Create the table.

        Args:
            definitions: the columns as CREATE TABLE lists them.
            properties: the table's.
        """

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns, in one commit."""

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, in one commit, for any reader of the format."""

    def append(self, rows: DataFrame, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has this version or a later one."""


class SparkAccess:
    """A Delta table on a disk, by Spark SQL; see TableAccess.

    Args:
        spark, path, table_format: see ManagedTable.
    """

    def __init__(self, spark: SparkSession, path: str, table_format: TableFormat) -> None:
        assert isinstance(table_format, Delta)  # noqa: S101 - the others are the driver's
        self._spark = spark
        self._path = path
        self._format = table_format
        self._name = table_format.name(spark, path)

    def exists(self) -> bool:
        """Ask the format; see TableAccess."""
        return self._format.exists(self._spark, self._path)

    def source_table(self) -> str | None:
        """Look at the table's properties; see TableAccess."""
        return source_table(self._spark, self._name) if self.exists() else None

    def schema(self) -> StructType:
        """Return the columns; see TableAccess."""
        return self._spark.table(self._name).schema

    def create(self, definitions: str, properties: Mapping[str, str]) -> None:
        """Create the table, unless another process has; see TableAccess."""
        listed = ", ".join(f"{literal(k)} = {literal(v)}" for k, v in properties.items())
        self._sql(
            f"CREATE TABLE IF NOT EXISTS {self._name} ({definitions})"
            f" USING {self._format.using} TBLPROPERTIES ({listed})"
        )

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Alter the table; see TableAccess."""
        definitions = ", ".join(
            f"{struct + '.' if struct else ''}{identifier(name)} {kind}"
            for struct, name, kind in columns
        )
        self._sql(f"ALTER TABLE {self._name} ADD COLUMNS ({definitions})")

    def rename_column(self, name: str, new_name: str) -> None:
        """Have the format rename it; see TableAccess."""
        with self._format.translating_conflicts(self._path):
            self._format.rename_column(self._spark, self._path, name, new_name)

    def append(self, rows: DataFrame, append_id: AppendId) -> None:
        """Have the format append; see TableAccess."""
        self._format.append(rows, self._path, append_id.application, append_id.version)

    def _sql(self, statement: str) -> None:
        with self._format.translating_conflicts(self._path):
            self._spark.sql(statement)


class ManagedTable(ABC):
    """The parts that a mirror and a typed changelog share.

    Args:
        spark: a session with the format's jar.
        path: the table's directory.
        table: the full name of the Spanner table.
        table_format: the format of the managed table.
        properties: the properties with which the table is created.
        access: None for Spark's.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableFormat,
        *,
        properties: Mapping[str, str] | None = None,
        access: TableAccess | None = None,
    ) -> None:
        self._spark = spark
        self._path = path
        self._table = table
        self._format = table_format
        self._properties = dict(properties or {})
        self._access = access or SparkAccess(spark, path, table_format)
        self._schema: StructType | None = None

    @property
    def table(self) -> str:
        """The full name of the Spanner table."""
        return self._table

    def ensure_columns(self, columns: Sequence[Column]) -> bool:
        """Create the table, or add the columns that it lacks.

        A column that was dropped in Spanner stays, without values in new rows.

        Returns:
            Whether it was created.

        Raises:
            ChangelogColumnError: a column's type has changed.
            ColumnNameError: the format can't hold the name of a column.
            TableNameError: the table is that of another one of Spanner's.
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        require_possible_names(self._table, columns, self._format, self._properties)
        if self._schema is None:
            self._require_own()
            if self._access.exists():
                self._load_schema()
        is_new = self._schema is None
        if is_new:
            properties = {**self._properties, SOURCE_TABLE_PROPERTY: self._table}
            self._access.create(self._column_definitions(columns), properties)
            self._load_schema()
        if self._fits(columns):
            return is_new
        # Somebody may have altered the table since its schema was loaded.
        self._load_schema()
        self._make_way(columns)
        if missing := self._missing_columns(columns):
            self._access.add_columns(missing)
            self._load_schema()
        return is_new

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has this version or a later one.

        Args:
            rows: with the table's columns.
            append_id: identifies the append.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        self._access.append(rows, append_id)

    @abstractmethod
    def _column_definitions(self, columns: Sequence[Column]) -> str:
        """Return the columns as CREATE TABLE lists them."""

    @abstractmethod
    def _missing_columns(self, columns: Sequence[Column]) -> Sequence[MissingColumn]:
        """Return the missing columns.

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
        other = self._access.source_table()
        if other not in {None, self._table}:
            raise same_name_error(
                str(other),
                self._table,
                f"{self._path} as their table",
                f"If {other!r} is gone for good, move its table away",
            )

    def _load_schema(self) -> None:
        self._schema = self._access.schema()
