"""The merge of a few rows into an Iceberg table on a local disk, without a job of Spark's.

The files with changed rows are written again, and Iceberg's own library commits them. The commit is
refused if the table has got another snapshot since its own was read, even one that changes no row
(Iceberg's specification, "Optimistic Concurrency"). So of two owners only one merges an epoch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.java import java_items, jvm_of
from slackwater.spark_sink.output.small_files import LOCAL_SCHEME, local_path
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.iceberg_commits import (
    COMMITS_MAX,
    commit,
    snapshot_id,
    with_current,
)
from slackwater.spark_sink.tables.row_merges import small_table
from slackwater.spark_sink.tables.row_merges.merged_rows import inserted_rows, places, updated_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIELD_ID: Final = b"PARQUET:field_id"
_FLOATS: Final = frozenset({"DOUBLE", "FLOAT"})
_PARQUET: Final = "PARQUET"
# Later ones give each row a number, which a rewritten row would lose.
_FORMAT_VERSION_MAX: Final = 2
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "long": pa.int64(),
    "int": pa.int32(),
    "double": pa.float64(),
    "float": pa.float32(),
    "boolean": pa.bool_(),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "date": pa.date32(),
    "decimal(38, 9)": pa.decimal128(38, 9),
    "binary": pa.binary(),
    "string": pa.string(),
}


class IcebergMergeRefusedError(Exception):
    """Spark has to merge into this table; the message says why."""


class LargeTableError(IcebergMergeRefusedError):
    """The table is too large to have its files read."""


class IcebergMerge:
    """A merge into one snapshot of a table.

    Args:
        spark: a session with Iceberg's jar.
        table: Iceberg's Table, as it is now.

    Raises:
        LargeTableError: the table is large.
        IcebergMergeRefusedError: the table is partitioned, or has files of another format, files
            of deletes, columns that no mirror has, or files that are not on a local disk.
    """

    def __init__(self, spark: SparkSession, table: Any) -> None:
        self._spark = spark
        self._jvm = jvm_of(spark)
        self._table = table
        self._snapshot = table.currentSnapshot()
        if table.operations().current().formatVersion() > _FORMAT_VERSION_MAX:
            raise IcebergMergeRefusedError("it numbers its rows")
        if not table.spec().isUnpartitioned():
            raise IcebergMergeRefusedError("it is partitioned")
        self._schema = _arrow_schema(
            self._jvm.org.apache.iceberg.SchemaParser.toJson(table.schema())
        )
        self._files = {local_file(spark, file.location()): file for file in self._data_files()}

    def merge(
        self,
        latest: pa.Table,
        columns: Sequence[Column],
        summary: Mapping[str, str],
        *,
        keeps_deleted: bool,
    ) -> None:
        """Apply an epoch's changes in one commit.

        Args:
            latest: as latest_rows() makes them.
            columns: the columns of the rows, which the table has.
            summary: of the new snapshot.
            keeps_deleted: a deleted row stays with its last values, and is marked as deleted.

        Raises:
            IcebergMergeRefusedError: Arrow does not compare the keys as Spark does, or has no room
                for the texts: an array of them ends at 2 GiB.
            PublishError: two processes committed at the same time; the epoch is read again.
            Py4JJavaError: the commit failed.
        """
        key = [column for column in columns if column.is_key]
        if not key or any(column.spark_type in _FLOATS for column in key):
            raise IcebergMergeRefusedError("it has no key, or one with floating-point numbers")
        try:
            changed, rows = self._changed(latest, key, columns, keeps_deleted=keeps_deleted)
        except pa.ArrowInvalid as error:
            raise IcebergMergeRefusedError(f"Arrow can't hold its rows: {error}") from error
        self._commit(changed, rows, summary)

    def _changed(
        self,
        latest: pa.Table,
        key: Sequence[Column],
        columns: Sequence[Column],
        *,
        keeps_deleted: bool,
    ) -> tuple[list[str], pa.Table]:
        """Return the files with rows that change, and what becomes of the rows of all of them."""
        # Each file is read by each merge.
        is_crowded = len(self._files) >= small_table.FILES_MAX
        changed, rows, places_of_changed = [], [], list[pa.Array]()
        for path in self._files:
            keys = self._read(path, [column.name for column in key])
            _require_nanoseconds(keys, key)
            in_file = places(keys, latest, key)
            if in_file.null_count == len(in_file) and not is_crowded:
                continue
            changed.append(path)
            whole = self._read(path, self._schema.names)
            is_changed = pc.is_valid(in_file)
            of_file = latest.take(in_file.drop_null())
            rows.append(whole.filter(pc.invert(is_changed)))
            rows.append(
                updated_rows(
                    whole.filter(is_changed), of_file, columns, keeps_deleted=keeps_deleted
                )
            )
            places_of_changed.append(in_file.drop_null())
        is_new = _is_not_in(latest.num_rows, places_of_changed)
        rows.append(
            inserted_rows(latest.filter(is_new), columns, self._schema, keeps_deleted=keeps_deleted)
        )
        return changed, pa.concat_tables(rows)

    def _commit(self, replaced: Sequence[str], rows: pa.Table, summary: Mapping[str, str]) -> None:
        overwrite = self._table.newOverwrite()
        for path in replaced:
            overwrite.deleteFile(self._files[path])
        if rows.num_rows:
            overwrite.addFile(self._write(rows))
        for name, value in summary.items():
            overwrite.set(name, value)
        self._make_current(overwrite.apply())

    def _make_current(self, snapshot: Any) -> None:
        """Make a snapshot the table's current one, if it follows the one that was read.

        Iceberg's own commit would put it after others' snapshots, unless their files conflict.

        Raises:
            PublishError: it does not.
            Py4JJavaError: the commit failed.
        """
        operations = self._table.operations()
        for _ in range(COMMITS_MAX):
            base = operations.current()
            if snapshot_id(base.currentSnapshot()) != snapshot_id(self._snapshot):
                break
            if commit(operations, base, with_current(self._spark, base, snapshot)):
                return
            # Properties may have been changed, or old snapshots expired.
            operations.refresh()
        raise commit_conflict(str(self._table.name()))

    def _write(self, rows: pa.Table) -> Any:
        """Write a file that no snapshot names yet, and return Iceberg's DataFile."""
        iceberg = self._jvm.org.apache.iceberg
        location = self._table.locationProvider().newDataLocation(f"{uuid.uuid4()}.parquet")
        path = Path(local_file(self._spark, location))
        path.parent.mkdir(parents=True, exist_ok=True)
        # Arrow's statistics ignore NaN, which for Spark is larger than all other numbers.
        others = [field.name for field in rows.schema if not pa.types.is_floating(field.type)]
        pq.write_table(rows, path, compression="zstd", write_statistics=others)
        file = self._table.io().newInputFile(location)
        metrics = iceberg.parquet.ParquetUtil.fileMetrics(
            file, iceberg.MetricsConfig.forTable(self._table)
        )
        builder = iceberg.DataFiles.builder(self._table.spec()).withPath(location)
        builder = builder.withFileSizeInBytes(path.stat().st_size).withFormat(_PARQUET)
        return builder.withMetrics(metrics).build()

    def _data_files(self) -> Iterator[Any]:
        if self._snapshot is None:
            return
        summary = self._snapshot.summary()
        totals = [int(summary.get(name) or 0) for name in ("total-files-size", "total-records")]
        if (reason := small_table.reason_against(*totals)) is not None:
            raise LargeTableError(reason)
        tasks = self._table.newScan().useSnapshot(self._snapshot.snapshotId()).planFiles()
        try:
            for task in java_items(tasks):
                if task.deletes().size():
                    raise IcebergMergeRefusedError("it has files of deletes")
                file = task.file()
                if file.format().toString() != _PARQUET:
                    raise IcebergMergeRefusedError("its files are not in Parquet")
                yield file
        finally:
            tasks.close()

    def _read(self, path: str, names: Sequence[str]) -> pa.Table:
        """Read columns of a file; they may have had other names when it was written."""
        file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        in_file = {_field_id(field): field for field in file.schema_arrow}
        fields = [self._schema.field(name) for name in names]
        there = [in_file[_field_id(field)].name for field in fields if _field_id(field) in in_file]
        read = file.read(there)
        arrays = [
            read.column(in_file[_field_id(field)].name).cast(field.type)
            if _field_id(field) in in_file
            else pa.nulls(file.metadata.num_rows, field.type)
            for field in fields
        ]
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def local_file(spark: SparkSession, location: str) -> str:
    """Return a location as Python names it.

    Raises:
        IcebergMergeRefusedError: it is not on a local disk.
    """
    # Hadoop fails at a scheme that only the catalog's own client can read, such as s3.
    path = local_path(spark, location) if urlsplit(location).scheme in {"", LOCAL_SCHEME} else None
    if path is None:
        raise IcebergMergeRefusedError("its files are not on a local disk")
    return str(path)


def _require_nanoseconds(keys: pa.Table, key: Sequence[Column]) -> None:
    """Refuse rows that a version without nanoseconds wrote: those match any."""
    for column in key:
        if column.nanoseconds_of is None:
            continue
        times, nanoseconds = keys.column(column.nanoseconds_of), keys.column(column.name)
        if nanoseconds.null_count > times.null_count:
            raise IcebergMergeRefusedError("rows have no nanoseconds yet")


def _is_not_in(size: int, taken: Sequence[pa.Array]) -> pa.Array:
    """Return for each place below a size whether none of the arrays has it."""
    at = pa.array(range(size), pa.int32())
    return pc.invert(pc.is_in(at, pa.concat_arrays([pa.array([], pa.int32()), *taken])))


def _arrow_schema(schema_json: str) -> pa.Schema:
    """Return a table's schema with the identifiers of its columns (Iceberg's "Column Projection").

    Raises:
        IcebergMergeRefusedError: the table has columns that no mirror has.
    """
    fields = json.loads(schema_json)["fields"]
    return pa.schema([_field(field["name"], field["id"], field["type"]) for field in fields])


def _field(name: str, field_id: int, kind: Any) -> pa.Field:
    if isinstance(kind, dict) and kind["type"] == "list":
        arrow_type = pa.list_(_field("element", kind["element-id"], kind["element"]))
    elif isinstance(kind, str) and kind in _TYPES:
        arrow_type = _TYPES[kind]
    else:
        raise IcebergMergeRefusedError(f"its column {name} is of type {kind}")
    return pa.field(name, arrow_type, metadata={_FIELD_ID: str(field_id)})


def _field_id(field: pa.Field) -> bytes | None:
    value: bytes | None = (field.metadata or {}).get(_FIELD_ID)
    return value
