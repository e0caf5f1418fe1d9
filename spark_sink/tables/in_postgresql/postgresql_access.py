"""A managed table in PostgreSQL: a mirror, or a typed changelog."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.database_access import PIPELINE_PROPERTY, DatabaseAccess
from slackwater.spark_sink.tables.in_postgresql.address import (
    TableAddress,
    digest,
    identifier,
    literal,
)
from slackwater.spark_sink.tables.in_postgresql.column_types import (
    as_texts,
    flat,
    is_cast,
    postgresql_type,
    schema_of,
    types_in_spanner,
)
from slackwater.spark_sink.tables.in_postgresql.database_log import (
    MARKS,
    DatabaseLog,
)
from slackwater.spark_sink.tables.in_postgresql.partitions import (
    Partition,
    expired,
    partition_at,
)
from slackwater.spark_sink.tables.in_postgresql.row_merge import RowMerge, cast, staged_rows
from slackwater.spark_sink.tables.table_access import schema_of_columns, schema_of_missing
from slackwater.spark_sink.tables.table_changes import (
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MergePolicy,
    MissingColumn,
)
from slackwater.spark_sink.tables.time_partitions import (
    PARTITION_BY,
    PARTITIONING,
    TimePartitions,
    time_partitions,
)
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.row_range import RowRange

_TEXT: Final = "text"
_TIME: Final = "commit_timestamp"
# A reader of all partitions keeps one from being dropped: it goes with a later epoch.
_DROP: Final = """DO $$ BEGIN
    SET LOCAL lock_timeout = '1s';
    DROP TABLE {table};
    SET LOCAL lock_timeout = '30s';
EXCEPTION WHEN lock_not_available THEN
END $$"""


class PostgresqlAccess(DatabaseAccess):
    """The TableAccess of a table in PostgreSQL.

    Args:
        log: of all tables.
        table: the table's name.

    Attributes:
        name: the table's in SQL.
    """

    def __init__(self, log: DatabaseLog, table: TableAddress) -> None:
        super().__init__(log)
        self._log = log
        self._table = table
        self.name = table.quoted
        # A schema has one of each name.
        self._index = f"slackwater_key_{digest(self.name)}"
        self._database = log.database
        # Of the table as it is, once it is asked for.
        self._key: Sequence[str] | None = None
        self._casts: Mapping[str, str] = {}

    def exists(self) -> bool:
        """Return whether there is the table; see TableAccess.

        Raises:
            PostgresqlError: it is another pipeline's, or somebody else's.
        """
        properties = self._log.properties_of(self._table)
        if properties is None:
            return False
        owner = properties.get(PIPELINE_PROPERTY)
        if owner != self._log.pipeline:
            whose = "was not made by slackwater" if owner is None else f"is that of {owner!r}"
            raise PostgresqlError(
                f"{self.name}: the table {whose}.",
                "Name a database or, with options=-csearch_path%3DNAME in path, a schema of its own"
                " for this pipeline, or rename the table",
            )
        return True

    def source_table(self) -> str | None:
        """Return what the table's comment says; see TableAccess."""
        return (self._log.properties_of(self._table) or {}).get(SOURCE_TABLE_PROPERTY)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        from pyspark.sql.pandas.types import from_arrow_schema

        return from_arrow_schema(self._schema())

    def _schema(self) -> pa.Schema:
        """Return the columns, and keep the types of those that texts are cast to."""
        columns = self._columns()
        self._casts = {name: kind for name, kind in columns.items() if is_cast(kind)}
        return schema_of(columns.items())

    def _columns(self) -> dict[str, str]:
        if not self.exists():
            raise PostgresqlError(f"{self.name}: the table is gone.", "Restore it")
        columns = self._log.reader.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            self.name,
        )
        return dict(columns)

    def create(
        self, definitions: str, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table, with properties as its storage parameters; see TableAccess."""
        self.make(schema_of_columns(definitions), properties, columns)

    def make(
        self, schema: pa.Schema, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table with the columns of a schema; see create()."""
        is_changelog = any(pa.types.is_struct(field.type) for field in schema)
        key = [column.name for column in columns if column.is_key and not is_changelog]
        types = types_in_spanner(columns)
        defined = ", ".join(_column(field, key, types) for field in flat(schema))
        of_comment = (SOURCE_TABLE_PROPERTY, *PARTITIONING)
        parameters = ", ".join(
            f"{identifier(name)} = {literal(value)}"
            for name, value in properties.items()
            if name not in of_comment
        )
        stated = {PIPELINE_PROPERTY: self._log.pipeline} | {
            name: properties[name] for name in of_comment if name in properties
        }
        by_time = f" PARTITION BY RANGE ({_TIME})" if PARTITION_BY in properties else ""
        with self._log.altering():
            if self._table.schema is not None:
                self._run(f"CREATE SCHEMA IF NOT EXISTS {identifier(self._table.schema)}")
            self._run(
                f"CREATE TABLE {self.name} ({defined}){by_time}"
                + (f" WITH ({parameters})" if parameters else "")
            )
            self._run(f"COMMENT ON TABLE {self.name} IS {literal(json.dumps(stated))}")
            self._make_key(key)

    def _make_key(self, key: Sequence[str], *, is_unique: bool = True) -> None:
        if key:
            names = ", ".join(map(identifier, key))
            kind, nulls = ("UNIQUE ", " NULLS NOT DISTINCT") if is_unique else ("", "")
            self._run(f"CREATE {kind}INDEX {self._index} ON {self.name} ({names}){nulls}")

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; see TableAccess."""
        renamed = f"RENAME COLUMN {identifier(name)} TO {identifier(new_name)}"
        with self._log.altering():
            self._run(f"ALTER TABLE {self.name} {renamed}")
        self._key = None

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns; see TableAccess."""
        types = {
            ".".join(filter(None, (column.struct, column.name))): column.spanner_type
            for column in columns
        }
        fields = flat(schema_of_missing(columns))
        added = (f"ADD COLUMN {_column(field, (), types)}" for field in fields)
        with self._log.altering():
            self._run(f"ALTER TABLE {self.name} {', '.join(added)}")

    def append(self, rows: DataFrame, append_id: AppendId) -> None:  # noqa: ARG002
        """Have tasks write rows, and copy them into the table; see TableAccess."""
        if self._log.is_open:
            self._copy(self._log.written(rows), arrow_schema_of(rows.schema))

    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:  # noqa: ARG002
        """Copy rows into the table; see TableAccess."""
        if self._log.is_open:
            self._copy(rows.to_batches(), rows.schema)

    def _copy(self, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> None:
        schema = flat(schema)
        flattened = (
            part
            for batch in batches
            for part in pa.Table.from_batches([batch]).flatten().to_batches()
        )
        with self._named():
            if (partitions := self._partitions) is None:
                self._copy_flat(pa.RecordBatchReader.from_batches(schema, flattened))
                return
            for batch in flattened:
                # Of each, since the connection does nothing else during a copy.
                self._ensure_partitions(partitions, batch.column(_TIME))
                self._copy_flat(pa.RecordBatchReader.from_batches(schema, [batch]))

    def _copy_flat(self, reader: pa.RecordBatchReader) -> None:
        names = reader.schema.names
        if self._casts.keys().isdisjoint(names):
            self._database.copy(self._table, reader)
            return
        staged = self._staged(reader)
        columns = {name: identifier(name) for name in names}
        values = (f"{column}{cast(name, self._casts)}" for name, column in columns.items())
        self._run(
            f"INSERT INTO {self.name} ({', '.join(columns.values())})"
            f" SELECT {', '.join(values)} FROM {staged}"
        )

    @cached_property
    def _partitions(self) -> TimePartitions | None:
        return time_partitions(self._log.properties_of(self._table) or {}, None)

    def _ensure_partitions(self, partitions: TimePartitions, times: pa.Array) -> None:
        """Make the partitions that some commits lack, and remove those whose time has come."""
        starts = pc.unique(pc.floor_temporal(times, unit=partitions.unit.lower())).to_pylist()
        needed = [partition_at(self._table, partitions.unit, start) for start in sorted(starts)]
        asked = "SELECT name FROM unnest($1::text[]) AS name WHERE to_regclass(name) IS NULL"
        absent = set(self._database.run(asked, [one.address.quoted for one in needed]))
        missing = [one for one in needed if (one.address.quoted,) in absent]
        for partition in missing:
            name = partition.address.quoted
            limits = (literal(datetime_to_rfc3339(at)) for at in (partition.start, partition.end))
            # Readers do not wait for this, as they would for CREATE TABLE ... PARTITION OF.
            self._run(f"CREATE TABLE {name} (LIKE {self.name})")
            self._run(
                f"ALTER TABLE {self.name} ATTACH PARTITION {name}"
                " FOR VALUES FROM ({}) TO ({})".format(*limits)
            )
        if missing:
            self._remove_expired(partitions, needed)

    def _remove_expired(self, partitions: TimePartitions, needed: Sequence[Partition]) -> None:
        """Remove partitions, but for those that rows are about to be in."""
        names = self._database.run(
            "SELECT relname FROM pg_inherits JOIN pg_class ON oid = inhrelid"
            " WHERE inhparent = to_regclass($1)",
            self.name,
        )
        others = {name for (name,) in names} - {one.address.name for one in needed}
        for gone in expired(self._table, others, partitions, needed[-1].start):
            self._run(_DROP.format(table=gone.quoted))

    def _merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        with self._named():
            self._merge_rows(rows, columns, policy)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Have errors name the table."""
        try:
            yield
        except PostgresqlError as error:
            raise PostgresqlError(f"{self.name}: {error.message}", error.hint) from error

    def _merge_rows(
        self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy
    ) -> None:
        """Merge changes, in the epoch's transaction."""
        key = [column.name for column in columns if column.is_key]
        # A table that was made again may have another key.
        has_key = rows is None or sorted(key) == sorted(self.key)
        if not has_key:
            index = TableAddress(self._table.schema, self._index)
            self._run(f"DROP INDEX IF EXISTS {index.quoted}")
        staged, has_nulls = None, False
        names: Mapping[str, str] = {}
        if rows is not None:
            has_nulls = any(rows.column(name).null_count for name in key)
            rows, names = staged_rows(rows)
            staged = self._staged(rows.to_reader())
        merge = RowMerge(self.name, staged, names, columns, policy, has_nulls, self._casts)
        for statement in merge.statements():
            self._run(statement)
        if not has_key:
            # Rows that are marked as deleted may have the same of the new key.
            self._make_key(key, is_unique=not policy.are_kept)
            self._key = None

    @property
    def key(self) -> Sequence[str]:
        """The columns by which rows are found."""
        if self._key is None:
            rows = self._database.run(
                "SELECT a.attname FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid"
                " JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
                " WHERE i.indrelid = to_regclass($1) AND c.relname = $2",
                self.name,
                self._index,
            )
            self._key = [name for (name,) in rows]
        return self._key

    def _staged(self, rows: pa.RecordBatchReader) -> str:
        """Copy rows into a temporary table, and return its name.

        The session keeps it: to make and drop one at each epoch would swell the system's catalogs.
        """
        columns = ", ".join(_column(field, (), {}) for field in rows.schema)
        name = f"staged_{digest(f'{self.name} {columns}')}"
        self._run(f"CREATE TEMPORARY TABLE IF NOT EXISTS {name} ({columns})")
        self._run(f"TRUNCATE pg_temp.{name}")
        self._database.copy_temporary(name, rows)
        return f"pg_temp.{name}"

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
        order = ' COLLATE "C"' if pa.types.is_string(schema.field(within.column).type) else ""
        asked = {">=": within.least, "<=": within.greatest}
        limits = {sign: limit for sign, limit in asked.items() if limit is not None}
        column = as_texts(identifier(within.column), self._casts.get(within.column, ""))
        conditions = [f"{column}{order} {sign} ${n}" for n, sign in enumerate(limits, 1)]
        inside = " AND ".join(conditions) or "TRUE"
        return f"({column} IS NULL OR ({inside}))", list(limits.values())

    def stated(self) -> str | None:
        """Return the low watermark of the rows; see DatabaseAccess."""
        marks = self._log.reader.run(
            f"SELECT low_watermark, incomplete FROM {MARKS} WHERE pipeline = $1",
            self._log.pipeline,
        )
        for low_watermark, incomplete in marks:
            if low_watermark is not None and self.source_table() not in json.loads(incomplete):
                return datetime_to_rfc3339(low_watermark)
        return None

    def read_at_watermark(self, spark: SparkSession) -> tuple[DataFrame, str] | None:
        """Return the rows, and the low watermark that they have; None without one."""
        schema = self._schema()
        # Both at one moment.
        with self._log.reader.snapshot():
            stated = self.stated()
            return None if stated is None else (self._frame(spark, schema), stated)

    def _frame(
        self,
        spark: SparkSession,
        schema: pa.Schema,
        condition: str = "TRUE",
        values: Sequence[Any] = (),
    ) -> DataFrame:
        names = ((identifier(name), self._casts.get(name, "")) for name in schema.names)
        columns = ", ".join(f"{as_texts(column, kind)} AS {column}" for column, kind in names)
        query = f"SELECT {columns} FROM {self.name} WHERE {condition}"
        with self._log.reader.batches(query, *values) as rows:
            return self._log.for_tasks.frame(spark, rows, schema)

    def _run(self, statement: str) -> None:
        self._database.run(statement)


def _column(field: pa.Field, key: Sequence[str], types: Mapping[str, str]) -> str:
    """Return the definition of a column; a key's texts are in Spanner's order.

    Args:
        field: the column in Arrow.
        key: the names of the key's columns.
        types: the columns' types in Spanner by their names.
    """
    kind = postgresql_type(field.type, types.get(field.name, ""))
    order = ' COLLATE "C"' if kind == _TEXT and field.name in key else ""
    return f"{identifier(field.name)} {kind}{order}"
