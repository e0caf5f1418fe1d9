"""A managed table in PostgreSQL: a mirror, or a typed changelog."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_transaction.names import (
    TableAddress,
    digest,
    identifier,
    literal,
)
from slackwater.spark_sink.tables.by_transaction.row_merge import cast
from slackwater.spark_sink.tables.by_transaction.transaction_access import TransactionAccess
from slackwater.spark_sink.tables.in_postgresql.column_types import (
    as_texts,
    flat,
    is_cast,
    postgresql_type,
    schema_of,
    types_in_spanner,
)
from slackwater.spark_sink.tables.in_postgresql.partitions import (
    Partition,
    expired,
    partition_at,
)
from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog
from slackwater.spark_sink.tables.table_access import schema_of_missing
from slackwater.spark_sink.tables.table_changes import (
    SOURCE_TABLE_PROPERTY,
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

_TEXT: Final = "text"
_TIME: Final = "commit_timestamp"
# In percent. A page with room takes a row's next version, and then no index is written: a merge
# touches half as many pages (PostgreSQL's documentation, "Heap-Only Tuples (HOT)").
_FILLED: Final = {"fillfactor": "90"}
# A reader of all partitions keeps one from being dropped: it goes with a later epoch.
_DROP: Final = """DO $$ BEGIN
    SET LOCAL lock_timeout = '1s';
    DROP TABLE {table};
    SET LOCAL lock_timeout = '30s';
EXCEPTION WHEN lock_not_available THEN
END $$"""


class PostgresqlAccess(TransactionAccess[PostgresqlLog]):
    """The TableAccess of a table in PostgreSQL."""

    text_order = ' COLLATE "C"'
    of_comment = (SOURCE_TABLE_PROPERTY, *PARTITIONING)

    @property
    def remedy(self) -> str:
        """The remedy where the table is another's; see TransactionAccess."""
        # A table of a named schema has that one, whichever else is searched.
        schema = " or, with options=-csearch_path%3DNAME in path, a schema"
        named = "" if self._table.schema else schema
        return f"Name a database{named} of its own for this pipeline, or rename the table"

    def __init__(self, log: PostgresqlLog, table: TableAddress) -> None:
        super().__init__(log, table)
        # A schema has one of each name.
        self._index = f"slackwater_key_{digest(self.name)}"
        # Of the table as it is, once it is asked for.
        self._key: Sequence[str] | None = None

    def _schema(self) -> pa.Schema:
        """Return the columns, and keep the types of those that texts are cast to."""
        columns = self._columns()
        self._casts = {name: kind for name, kind in columns.items() if is_cast(kind)}
        return schema_of(columns.items())

    def _columns(self) -> dict[str, str]:
        self._require_there()
        columns = self._log.reader.run(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute"
            " WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
            self.name,
        )
        return dict(columns)

    def _make_table(
        self, schema: pa.Schema, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table; see TransactionAccess."""
        is_changelog = any(pa.types.is_struct(field.type) for field in schema)
        key = [column.name for column in columns if column.is_key and not is_changelog]
        types = types_in_spanner(columns)
        defined = ", ".join(_column(field, key, types) for field in flat(schema))
        asked = {**({} if is_changelog else _FILLED), **properties}
        parameters = ", ".join(
            f"{identifier(name)} = {literal(value)}"
            for name, value in asked.items()
            if name not in self.of_comment
        )
        by_time = f" PARTITION BY RANGE ({_TIME})" if PARTITION_BY in properties else ""
        self._run(
            f"CREATE TABLE {self.name} ({defined}){by_time}"
            + (f" WITH ({parameters})" if parameters else "")
        )
        self._make_key(key)

    def _make_key(self, key: Sequence[str], *, is_unique: bool = True) -> None:
        if key:
            names = ", ".join(map(identifier, key))
            kind, nulls = ("UNIQUE ", " NULLS NOT DISTINCT") if is_unique else ("", "")
            self._run(f"CREATE {kind}INDEX {self._index} ON {self.name} ({names}){nulls}")

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; see TableAccess."""
        super().rename_column(name, new_name)
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
        super()._merge_rows(rows, columns, policy)
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

    def _value(self, column: str) -> str:
        """Return a column as texts, if it is one that they are cast to."""
        return as_texts(identifier(column), self._casts.get(column, ""))


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
