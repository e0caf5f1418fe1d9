"""The rows of a Delta table's version, read by tasks: Spark needs neither jar nor connector."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.delta_features import DELETION_VECTORS, has_column_mapping
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.tables.delta_log import load

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


def rows_of(
    spark: SparkSession, path: str, options: Mapping[str, str], version: int | None = None
) -> DataFrame:
    """Return a table's rows.

    Args:
        spark: a session.
        path: the table's URL.
        options: of the object store; see open_object_store().
        version: None for the latest.

    Raises:
        DeltaUnsupportedError: its files do not say all of its rows.
        PublishError: the store fails.
    """
    with delta_errors(path):
        table = load(path, options, version)
        files, schema = _files_of(table), spark_schema(table.schema().to_json())
    return FileReader(path.rstrip("/"), dict(options)).frame(spark, files, schema)


def read_rows(
    table: DeltaTable, path: str, options: Mapping[str, str]
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Read a loaded table's rows here, and return them with their columns.

    Args:
        table: the table.
        path, options: see rows_of().

    Raises:
        DeltaUnsupportedError: see rows_of().
        PublishError: a file is gone.
    """
    schema = arrow_schema_of(spark_schema(table.schema().to_json()))
    reader = FileReader(path.rstrip("/"), dict(options), schema)
    return schema, reader.batches(_files_of(table))


def spark_schema(text: str) -> StructType:
    """Return columns, which Delta's log writes down as Spark does."""
    from pyspark.sql.types import StructType

    schema: StructType = StructType.fromJson(json.loads(text))
    return schema


def _files_of(table: DeltaTable) -> list[WrittenFile]:
    features = set(table.protocol().reader_features or ())
    if has_column_mapping(table) or DELETION_VECTORS in features:
        raise DeltaUnsupportedError("it has mapped columns or deletion vectors")
    if table.metadata().partition_columns:
        raise DeltaUnsupportedError("it has partitions")
    listed = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
    return [WrittenFile("", None, unquote(file["path"]), file["size_bytes"]) for file in listed]
