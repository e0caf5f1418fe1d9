"""The rows of a Delta table's version, read by tasks: Spark needs neither jar nor connector."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote

import pyarrow as pa

from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.delta_features import DELETION_VECTORS, has_column_mapping
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.tables.delta_log import load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
    from pyspark.sql.types import StructType

    with delta_errors(path):
        table = load(path, options, version)
        features = set(table.protocol().reader_features or ())
        if has_column_mapping(table) or DELETION_VECTORS in features:
            raise DeltaUnsupportedError("it has mapped columns or deletion vectors")
        listed = pa.table(table.get_add_actions()).select(["path", "size_bytes"]).to_pylist()
        schema = StructType.fromJson(json.loads(table.schema().to_json()))
    files = [WrittenFile("", None, unquote(file["path"]), file["size_bytes"]) for file in listed]
    return FileReader(path.rstrip("/"), dict(options)).frame(spark, files, schema)
