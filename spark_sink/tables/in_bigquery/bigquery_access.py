"""A managed table in BigQuery: a typed changelog, or a mirror."""

import hashlib
import json
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain, islice
from typing import Any, Final

import pyarrow as pa
from google.cloud import bigquery
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.output.bigquery.schema import fields_of, schema_of, with_fields
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.database_access import DatabaseAccess
from slackwater.spark_sink.tables.in_bigquery.changelog_views import MARKS, cut
from slackwater.spark_sink.tables.in_bigquery.dataset_log import (
    DatasetLog,
    owner_of,
    properties_of,
)
from slackwater.spark_sink.tables.in_bigquery.merge import (
    STAGED_AT,
    StagedRows,
    TableMerge,
    marked,
    staged_changes,
    table_merge,
)
from slackwater.spark_sink.tables.in_bigquery.table_layout import CLUSTERED_MAX, table_layout
from slackwater.spark_sink.tables.row_merges.row_changes import LATEST
from slackwater.spark_sink.tables.table_access import schema_of_columns, schema_of_missing
from slackwater.spark_sink.tables.table_changes import (
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MergePolicy,
    MissingColumn,
)
from slackwater.timestamp import datetime_to_rfc3339, datetime_to_us

# Rows are merged at once; after days the rest of their commit may be gone.
_DAY_MS: Final = 24 * 3_600_000
_STAGED_MS: Final = 7 * _DAY_MS
# BigQuery's documentation, "Clustered tables".
_CLUSTERED: Final = frozenset({"STRING", "INTEGER", "BOOLEAN", "DATE", "TIMESTAMP", "NUMERIC"})
# What is read beside a mirror's rows: no table's column is called so.
_AT: Final = f"{LATEST}low_watermark"
_LACK: Final = f"{LATEST}incomplete"
_ROWS: Final = f"{LATEST}rows"


class BigQueryAccess(DatabaseAccess):
    """The TableAccess of a table in BigQuery.

    Args:
        log: of all tables of the dataset.
        name: the table's.
    """

    def __init__(self, log: DatasetLog, name: str) -> None:
        super().__init__(log)
        self._log = log
        self._name = name
        self._dataset = log.dataset
        self._id = log.dataset.address(name).id
        self._has_cut = False
        # The tables for staged rows.
        self._made: set[str] = set()

    def exists(self) -> bool:
        """Return whether there is the table; see TableAccess.

        Raises:
            BigQueryError: it is another pipeline's or somebody else's, or can't be written to.
        """
        return self._own() is not None

    def _own(self) -> bigquery.Table | None:
        """Return the table as it is; None if there is none."""
        table = self._dataset.table(self._name)
        if table is not None:
            owner = owner_of(table)
            if owner != self._log.pipeline:
                whose = "was not made by slackwater" if owner is None else f"is that of {owner!r}"
                raise BigQueryError(
                    f"{self._id}: the table {whose}.",
                    "Name a dataset of its own for this pipeline, or rename the table",
                )
            self._log.require_usable(table)
        return table

    def source_table(self) -> str | None:
        """Return what the table's description says; see TableAccess."""
        table = self._dataset.table(self._name)
        return None if table is None else properties_of(table).get(SOURCE_TABLE_PROPERTY)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        # Whoever made the table may have died before it made this.
        self._make_cut()
        return from_arrow_schema(schema_of(self._existing().schema))

    def _existing(self) -> bigquery.Table:
        table = self._own()
        if table is None:
            raise BigQueryError(f"{self._id}: the table is gone.")
        return table

    def create(
        self, definitions: str, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Make the table; see TableAccess."""
        key = [column.name for column in columns if column.is_key]
        fields = fields_of(schema_of_columns(definitions))
        stated = {**properties, **self._log.properties()}
        made = {
            "description": json.dumps(stated),
            **self._layout(fields, key),
            **self._asked(properties, {field.name for field in fields}),
        }
        self._dataset.make(self._name, fields, **made)
        self._own()

    def _asked(self, properties: Mapping[str, str], columns: Collection[str]) -> dict[str, Any]:
        """Return the properties of a new table with columns that settings ask for."""
        layout = table_layout(properties, are_merged=self._log.are_merged)
        asked: dict[str, Any] = {"labels": dict(layout.labels)}
        if clustered := [name for name in layout.cluster_by if name in columns]:
            asked["clustering_fields"] = clustered
        if (partitions := layout.partitions) is not None:
            after_ms = None if partitions.days is None else partitions.days * _DAY_MS
            asked["time_partitioning"] = bigquery.TimePartitioning(
                partitions.unit, "commit_timestamp", after_ms
            )
        return asked

    def _layout(self, fields: Sequence[bigquery.SchemaField], key: Sequence[str]) -> dict[str, Any]:
        """Return the properties of a new table that follow from its columns."""
        if not self._log.are_merged:
            return {}
        by_name = {field.name: field.field_type for field in fields}
        clustered = [name for name in key if by_name.get(name) in _CLUSTERED][:CLUSTERED_MAX]
        return {"clustering_fields": clustered or None}

    def _make_cut(self) -> None:
        """Make the view of a changelog's rows up to the low watermark of all, once."""
        if self._log.are_merged or self._has_cut:
            return
        query = cut(self._dataset.address(self._name), self._log.pipeline)
        self._dataset.make(f"_cut_{self._name}", view_query=query)
        self._has_cut = True

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; see TableAccess."""
        there = self._existing()
        if name in (there.clustering_fields or ()):
            self._dataset.unclustered(there)
        text = f"ALTER TABLE `{self._id}` RENAME COLUMN `{name}` TO `{new_name}`"
        self._dataset.run(text, "renaming a column", self._name)

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns; see TableAccess."""
        table = self._existing()
        added = fields_of(schema_of_missing(columns))
        self._dataset.set_fields(table, with_fields(table.schema, added))

    def append(self, rows: DataFrame, append_id: AppendId) -> None:  # noqa: ARG002
        """Have tasks write rows, and append them; see TableAccess."""
        if self._log.are_merged:
            # Rows that were appended to a mirror's table could not be merged into for a while.
            written = self.collected(rows)
            if self._log.is_open and written.num_rows:
                self._insert(written)
        elif self._log.is_open:
            self._log.append(self._name, self._log.written(rows))

    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:  # noqa: ARG002
        """Append rows without a job of Spark's; see TableAccess."""
        if self._log.is_open:
            self._log.append(self._name, rows.to_batches())

    def _merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        """Stage changes after corrections, for the transaction of all mirrors."""
        staged = None if rows is None else self._stage(staged_changes(rows, columns))
        self._log.merge(table_merge(self._id, staged, rows, columns, policy))

    def _insert(self, rows: pa.Table) -> None:
        """Stage rows of a scan's chunk, for the transaction that inserts them."""
        staged = self._stage(rows)
        self._log.merge(TableMerge(self._id, rows.column_names, staged=staged, is_insertion=True))

    def _stage(self, rows: pa.Table) -> StagedRows:
        """Append rows to the table for rows of their columns on their way to this one."""
        fields = fields_of(marked(rows.slice(0, 0), StagedRows("", "", 0, 0)).schema)
        shape = json.dumps([field.to_api_repr() for field in fields]).encode()
        name = f"_staged_{self._name}_{hashlib.sha256(shape).hexdigest()[:8]}"
        if name not in self._made:
            by_hour = bigquery.TimePartitioning("HOUR", STAGED_AT, _STAGED_MS)
            self._dataset.make(name, fields, time_partitioning=by_hour)
            self._made.add(name)
        at_us = datetime_to_us(datetime.now(UTC))
        table = self._dataset.address(name).id
        staged = StagedRows(table, uuid.uuid4().hex, at_us, rows.num_rows)
        self._log.append(name, marked(rows, staged).to_batches())
        return staged

    def read(self, spark: SparkSession, within: RowRange | None = None) -> DataFrame:
        """Return the rows as they are now; see TableStore."""
        condition = "TRUE"
        if within is not None:
            limits = [(">=", within.least), ("<=", within.greatest)]
            condition = " AND ".join(
                f"`{within.column}` {order} {json.dumps(limit, ensure_ascii=False)}"
                for order, limit in limits
                if limit is not None
            )
            condition = f"(`{within.column}` IS NULL OR ({condition}))" if condition else "TRUE"
        text = f"SELECT * FROM `{self._id}` WHERE {condition}"
        return self._frame(spark, self._dataset.batches(text, self._name))

    def stated(self) -> str | None:
        """Return the low watermark of the rows; see DatabaseAccess."""
        return self._stated_in(self._rows(f"SELECT {self._stated()}"))

    def _stated(self) -> str:
        """Return columns of the low watermark, and of the tables that lack rows then."""
        marks = self._dataset.address(MARKS).id
        of_pipeline = (
            f"FROM `{marks}` WHERE pipeline = {json.dumps(self._log.pipeline, ensure_ascii=False)}"
            " AND chunk IS NULL ORDER BY low_watermark DESC LIMIT 1"
        )
        return (
            f"(SELECT low_watermark {of_pipeline}) AS {_AT},"
            f" (SELECT TO_JSON_STRING(incomplete) {of_pipeline}) AS {_LACK}"
        )

    def _stated_in(self, rows: pa.Table | pa.RecordBatch) -> str | None:
        """Return what the first row has in such columns."""
        at, lack = (rows.column(name)[0].as_py() for name in (_AT, _LACK))
        if at is None or self.source_table() in json.loads(lack or "[]"):
            return None
        return datetime_to_rfc3339(at)

    def read_at_watermark(self, spark: SparkSession) -> tuple[DataFrame, str] | None:
        """Return the rows, and the low watermark that they have; None without one."""
        # By one query with the rows, so that all is of one moment.
        stated = self._stated()
        while True:
            text = f"SELECT *, {stated} FROM `{self._id}`"
            batches = self._dataset.batches(text, self._name)
            rows = list(islice((batch for batch in batches if batch.num_rows), 1))
            if rows:
                break
            # Without a row nothing is stated; there may be some by now.
            counted = self._rows(f"SELECT (SELECT COUNT(*) FROM `{self._id}`) AS {_ROWS}, {stated}")
            if not counted.column(_ROWS)[0].as_py():
                break
        at = self._stated_in(rows[0] if rows else counted)
        return None if at is None else (self._frame(spark, chain(rows, batches)), at)

    def _rows(self, text: str) -> pa.Table:
        return self._dataset.rows(text, self._name)

    def _frame(self, spark: SparkSession, rows: Iterable[pa.RecordBatch]) -> DataFrame:
        first = list(islice(batches := iter(rows), 1))
        schema = self._own_columns(first[0].schema.names if first else None)
        own = (batch.select(schema.names) for batch in chain(first, batches))
        return self._log.for_tasks.frame(spark, own, schema)

    def _own_columns(self, names: Collection[str] | None) -> pa.Schema:
        """Return those of columns that a row of ours can have; None for all of the table."""
        fields = schema_of(self._existing().schema)
        return pa.schema([f for f in fields if names is None or f.name in names])
