"""The rows of a Delta table's version, read by tasks: Spark needs neither jar nor connector."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.delta.errors import unsupported
from slackwater.spark_sink.output.delta.features import refused
from slackwater.spark_sink.output.delta.rows import deleted_positions
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.output.small_files import without_scheme
from slackwater.spark_sink.tables.by_driver.delta_access import spark_schema


def rows_of(
    spark: SparkSession,
    path: str,
    options: Mapping[str, str],
    version: int | None = None,
    within: RowRange | None = None,
) -> DataFrame:
    """Return a table's rows.

    Args:
        spark: a session.
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
        version: None for the latest.
        within: see TableFormat.read().

    Raises:
        ObjectStoreError: its files do not say all of its rows.
        PublishError: the table is gone, or the store fails.
    """
    snapshot = DeltaLog(path, options).load(version)
    if snapshot is None:
        raise PublishError(f"{path}: the table is gone.")
    features = refused(snapshot)
    if features := [*features, *(f"partitions by {n}" for n in snapshot.partition_columns)]:
        raise unsupported(path, features)
    place, data = without_scheme(path).rstrip("/"), DataFolder(path, options)
    there = {n: added for n, added in snapshot.files.items() if _may_have(added, within)}
    files = [WrittenFile("", None, name, added["size"]) for name, added in there.items()]
    marks = {name: deleted_positions(data, added) for name, added in there.items()}
    deleted = {name: marked for name, marked in marks.items() if marked is not None}
    reader = FileReader(place, dict(options), deleted=deleted, within=within)
    return reader.frame(spark, files, spark_schema(snapshot.schema_json))


def _may_have(added: Mapping[str, Any], within: RowRange | None) -> bool:
    """Return whether a file may have rows in a range, by its statistics."""
    if within is None:
        return True
    stats = json.loads(added.get("stats") or "{}")
    names = ("minValues", "maxValues", "nullCount")
    return within.may_have(*(stats.get(name, {}).get(within.column) for name in names))
