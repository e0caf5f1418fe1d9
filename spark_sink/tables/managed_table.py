"""A Delta or Iceberg table that a pipeline creates and alters for one of Spanner's tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import ChangelogColumnError, ColumnNameError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.table_names import same_name_error
from slackwater.spark_sink.tables.table_changes import (
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MissingColumn,
)
from slackwater.spark_sink.tables.table_store import TableStore

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.tables.table_access import TableAccess


def require_possible_names(
    table: str,
    columns: Sequence[Column],
    table_format: TableStore,
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
        if not table_format.takes_column(column.name):
            remedy = "leave the column out with filter.exclude_columns, or rename it"
            if values:
                setting = f"{key}: {values[0]} in sink.table_properties"
                remedy = f"set {setting} before the table is made, {remedy}"
            raise ColumnNameError(
                f"column {table}.{column.name!r}: {table_format.using} does not take that name.",
                f"{remedy[0].upper()}{remedy[1:]}",
            )


class ManagedTable(ABC):
    """The base class of a mirror and a typed changelog.

    Args:
        spark: a session.
        path: the table's directory or URL.
        table: the full name of the Spanner table.
        table_format: the format of the managed table.
        access: to the managed table.
        properties: the properties with which the table is created.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableStore,
        access: TableAccess,
        *,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        self._spark = spark
        self._path = path
        self.table: Final = table
        self._format = table_format
        self._properties = dict(properties or {})
        self._access = access
        self._schema: StructType | None = None

    def ensure_columns(self, columns: Sequence[Column]) -> bool:
        """Create the table, or add the columns that it lacks.

        A column that was dropped in Spanner stays, without values in new rows.

        Returns:
            Whether it was created.

        Raises:
            ChangelogColumnError: a column's type has changed.
            ColumnNameError: the format can't hold the name of a column.
            TableNameError: the table belongs to another Spanner table.
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        require_possible_names(self.table, columns, self._format, self._properties)
        if self._schema is None:
            self._require_own()
            if self._access.exists():
                self._load_schema()
        is_new = self._schema is None
        if is_new:
            properties = {**self._properties, SOURCE_TABLE_PROPERTY: self.table}
            self._access.create(self._column_definitions(columns), properties, columns)
            self._load_schema()
        if self._fits(columns):
            return is_new
        # The table may have been altered since its schema was loaded.
        self._load_schema()
        self._rename_retyped_columns(columns)
        if missing := self._missing_columns(columns):
            self._access.add_columns(missing)
            self._load_schema()
        return is_new

    @abstractmethod
    def rows_of(
        self, records: DataFrame, columns: Sequence[Column], *, is_checked: bool = False
    ) -> DataFrame:
        """Return the rows that records add to the table, in a column row.

        Args:
            records: rows of the output's contract, of any tables; of a mirror, those that insert
                each of its rows once.
            columns: the columns that the table's records name. After ensure_columns().
            is_checked: a value that is not of its column's type becomes NULL and is reported in
                the column bad_columns; otherwise the query fails.
        """

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

    def _rename_retyped_columns(self, columns: Sequence[Column]) -> None:
        """Rename columns of former types, if the kind of table can."""
        del columns

    def _fits(self, columns: Sequence[Column]) -> bool:
        try:
            return not self._missing_columns(columns)
        except ChangelogColumnError:
            return False

    def _require_own(self) -> None:
        """Refuse the table of another Spanner table, as where file systems ignore case."""
        other = self._access.source_table()
        if other not in {None, self.table}:
            raise same_name_error(
                str(other),
                self.table,
                f"{self._path} as their table",
                f"If {other!r} is gone for good, move its table away",
            )

    def _load_schema(self) -> None:
        self._schema = self._access.schema()
