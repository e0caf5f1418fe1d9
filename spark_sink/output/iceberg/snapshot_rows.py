"""The rows of an Iceberg table's snapshot, read by tasks: Spark needs no jar."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output.file_writer import parse_schema, schema_text
from slackwater.spark_sink.output.iceberg.columns import columns_of_files
from slackwater.spark_sink.output.iceberg.file_rows import (
    deleted_positions,
    opened,
    rows_of_file,
)
from slackwater.spark_sink.output.iceberg.store_io import StoreIO, files_of
from slackwater.spark_sink.output.rows_of_files import without

_DELETES: Final = pa.list_(pa.struct({"path": pa.string(), "size": pa.int64()}))
_FILES: Final = pa.schema({"path": pa.string(), "size": pa.int64(), "deletes": _DELETES})


@dataclass(frozen=True, slots=True)
class _Reader:
    """A reader of files in tasks.

    Attributes:
        options: see open_object_store().
        columns: the table's, by schema_text().
    """

    options: Mapping[str, str]
    columns: str

    def read(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the files that batches of _FILES name."""
        files, columns = StoreIO({}, self.options), parse_schema(self.columns)
        plain = pa.schema([pa.field(field.name, _plain(field.type)) for field in columns])
        for listed in (row for batch in batches for row in batch.to_pylist()):
            deletes = [(item["path"], item["size"]) for item in listed["deletes"]]
            deleted = deleted_positions(files, deletes, listed["path"])
            first = 0
            with opened(files, listed["path"], listed["size"]) as source:
                for rows in rows_of_file(source, columns):
                    yield from without(rows, first, deleted).cast(plain).to_batches()
                    first += rows.num_rows


def rows_of(spark: SparkSession, table: Table, snapshot: int | None = None) -> DataFrame:
    """Return the rows of a table.

    Args:
        spark: a session.
        table: as it was loaded.
        snapshot: its id; None for the current one.

    Raises:
        UnreadableFileError: in tasks: a file does not say which columns it has.
    """
    columns = columns_of_files(table)
    schema = from_arrow_schema(columns)
    listed = [
        {
            "path": task.file.file_path,
            "size": task.file.file_size_in_bytes,
            "deletes": [
                {"path": deletes.file_path, "size": deletes.file_size_in_bytes}
                for deletes in task.delete_files
            ],
        }
        for task in table.scan(snapshot_id=snapshot).plan_files()
    ]
    if not listed:
        return spark.createDataFrame([], schema)
    reader = _Reader(files_of(table).options, schema_text(columns))
    files = spark.createDataFrame(pa.Table.from_pylist(listed, _FILES))
    return map_in_arrow(files, reader.read, schema)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type without the identifiers of its parts."""
    if pa.types.is_struct(kind):
        parts = (kind.field(place) for place in range(kind.num_fields))
        return pa.struct([pa.field(part.name, _plain(part.type)) for part in parts])
    if pa.types.is_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind
