"""A managed table in a database whose epochs are transactions."""

import json
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import DatabaseError
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_transaction.names import TableAddress, identifier, literal
from slackwater.spark_sink.tables.by_transaction.row_merge import RowMerge, staged_rows
from slackwater.spark_sink.tables.by_transaction.transaction_log import TransactionLog
from slackwater.spark_sink.tables.database_access import PIPELINE_PROPERTY, DatabaseAccess
from slackwater.spark_sink.tables.mirror_merge import merge_fields
from slackwater.spark_sink.tables.table_access import schema_of_columns
from slackwater.spark_sink.tables.table_changes import (
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MergeId,
    MergePolicy,
)

L = TypeVar("L", bound=TransactionLog[Any])


class TransactionAccess(DatabaseAccess, Generic[L]):
    """The TableAccess of a table in such a database.

    Args:
        log: of all tables.
        table: the table's name.

    Attributes:
        name: the table's in SQL.
        text_order: what gives texts Spanner's order in SQL.
        of_comment: the properties that the table's comment has.
        deletes_apart: see RowMerge.
    """

    text_order: ClassVar[str] = ""
    of_comment: ClassVar[Sequence[str]] = (SOURCE_TABLE_PROPERTY,)
    deletes_apart: ClassVar[bool] = False

    @property
    @abstractmethod
    def remedy(self) -> str:
        """The remedy where the table is another's."""

    def __init__(self, log: L, table: TableAddress) -> None:
        super().__init__(log)
        self._log = log
        self._table = table
        self.name = table.quoted
        self._database = log.database
        # The types in SQL of columns that texts are cast to, by name.
        self._casts: Mapping[str, str] = {}

    def exists(self) -> bool:
        """Return whether there is the table; see TableAccess.

        Raises:
            DatabaseError: it is another pipeline's, or somebody else's.
        """
        properties = self._log.properties_of(self._table)
        if properties is None:
            return False
        owner = properties.get(PIPELINE_PROPERTY)
        if owner != self._log.pipeline:
            whose = "was not made by slackwater" if owner is None else f"is that of {owner!r}"
            raise self._log.error(f"{self.name}: the table {whose}.", self.remedy)
        return True

    def source_table(self) -> str | None:
        """Return what the table's comment says; see TableAccess."""
        return (self._log.properties_of(self._table) or {}).get(SOURCE_TABLE_PROPERTY)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        return from_arrow_schema(self._schema())

    @abstractmethod
    def _schema(self) -> pa.Schema:
        """Return the columns, without those that others added in types that no mirror has."""

    def _require_there(self) -> None:
        if not self.exists():
            raise self._log.error(f"{self.name}: the table is gone.", "Restore it")

    def create(
        self, definitions: str, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table; see TableAccess."""
        self.make(schema_of_columns(definitions), properties, columns)

    def make(
        self, schema: pa.Schema, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table with the columns of a schema; see create()."""
        stated = {PIPELINE_PROPERTY: self._log.pipeline} | {
            name: properties[name] for name in self.of_comment if name in properties
        }
        with self._log.altering():
            if self._table.schema is not None:
                self._run(f"CREATE SCHEMA IF NOT EXISTS {identifier(self._table.schema)}")
            self._make_table(schema, properties, columns)
            self._run(f"COMMENT ON TABLE {self.name} IS {literal(json.dumps(stated))}")

    @abstractmethod
    def _make_table(
        self, schema: pa.Schema, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table, whose schema is there, in a transaction."""

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; see TableAccess."""
        renamed = f"RENAME COLUMN {identifier(name)} TO {identifier(new_name)}"
        with self._log.altering():
            self._run(f"ALTER TABLE {self.name} {renamed}")

    def append(self, rows: DataFrame, append_id: AppendId) -> None:  # noqa: ARG002
        """Have tasks write rows, and copy them into the table; see TableAccess."""
        if self._log.is_open:
            self._copy(self._log.written(rows), arrow_schema_of(rows.schema))

    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:  # noqa: ARG002
        """Copy rows into the table; see TableAccess."""
        if self._log.is_open:
            self._copy(rows.to_batches(), rows.schema)

    @abstractmethod
    def _copy(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        """Append rows to the table, in the epoch's transaction."""

    def _merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        with self._named():
            self._merge_rows(rows, columns, policy)

    def _merge_rows(
        self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy
    ) -> None:
        """Merge changes, in the epoch's transaction."""
        staged, has_nulls = None, False
        names: Mapping[str, str] = {}
        if rows is not None:
            has_nulls = any(rows.column(c.name).null_count for c in columns if c.is_key)
            rows, names = staged_rows(rows)
            staged = self._staged(rows.to_reader())
        merge = RowMerge(
            self.name,
            **merge_fields(columns, policy),
            deletes_apart=self.deletes_apart,
            staged=staged,
            names=names,
            has_null_keys=has_nulls,
            casts=self._casts,
        )
        for statement in merge.statements():
            self._run(statement)

    @abstractmethod
    def _staged(self, rows: pa.RecordBatchReader) -> str:
        """Copy rows into a temporary table, and return its name in SQL."""

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have errors name the table."""
        try:
            yield
        except DatabaseError as error:
            raise type(error)(f"{self.name}: {error.message}", error.hint) from error

    def read(self, spark: SparkSession, within: RowRange | None = None) -> DataFrame:
        """Return the rows as they are now; see TableStore."""
        schema = self._schema()
        limits, values = self._limits(within, schema)
        return self._frame(spark, schema, limits, values)

    def _limits(
        self, within: RowRange | None, schema: pa.Schema
    ) -> tuple[str, Sequence[int | str]]:
        """Return the condition for rows in a range, and its values; texts in Spanner's order."""
        if within is None:
            return "TRUE", ()
        # The mirror may have the column from a former table, whose case was another.
        own = {name.lower(): name for name in schema.names}[within.column.lower()]
        is_text = pa.types.is_string(schema.field(own).type)
        order = self.text_order if is_text else ""
        asked = {">=": within.least, "<=": within.greatest}
        limits = {sign: limit for sign, limit in asked.items() if limit is not None}
        column = self._value(own)
        conditions = [f"{column}{order} {sign} ${n}" for n, sign in enumerate(limits, 1)]
        inside = " AND ".join(conditions) or "TRUE"
        return f"({column} IS NULL OR ({inside}))", list(limits.values())

    def stated(self) -> str | None:
        """Return the low watermark of the rows; see DatabaseAccess."""
        return self._log.stated(self.source_table())

    def read_at_watermark(self, spark: SparkSession) -> tuple[DataFrame, str] | None:
        """Return the rows, and the low watermark that they have; None without one."""
        schema = self._schema()
        # Both at one moment.
        with self._log.reader.snapshot():
            stated = self.stated()
            return None if stated is None else (self._frame(spark, schema), stated)

    def publish_watermark(self, merge_id: MergeId) -> None:
        """State that the table is complete, unless the next epoch does; see TableAccess."""
        self._log.state_complete(self.source_table(), merge_id.low_watermark)

    def _value(self, column: str) -> str:
        """Return a column as it is read, in SQL."""
        return identifier(column)

    def _frame(
        self,
        spark: SparkSession,
        schema: pa.Schema,
        condition: str = "TRUE",
        values: Sequence[Any] = (),
    ) -> DataFrame:
        columns = ", ".join(f"{self._value(name)} AS {identifier(name)}" for name in schema.names)
        query = f"SELECT {columns} FROM {self.name} WHERE {condition}"
        with self._log.reader.batches(query, *values) as rows:
            return self._log.for_tasks.frame(spark, rows, schema)

    def _run(self, statement: str) -> None:
        self._database.run(statement)
