"""Delta and Iceberg tables by their paths, as libraries read them that did not write them."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from slackwater.spark_sink.output.iceberg.store_io import StoreIO
from slackwater.spark_sink.tables.table_format import TableFormat

NO_OPTIONS: Mapping[str, str] = MappingProxyType({})


def iceberg_at(path: Path | str, options: Mapping[str, str] = NO_OPTIONS) -> Table:
    """Return the table in a folder, by the hint of its metadata.

    Args:
        path: the folder, or its URL.
        options: of the object store; see open_object_store().
    """
    files = StoreIO({}, options)
    with files.new_input(f"{path}/metadata/version-hint.text").open() as hint:
        place = f"{path}/metadata/v{int(hint.read())}.metadata.json"
    metadata = FromInputFile.table_metadata(files.new_input(place))
    return Table(("table",), metadata, place, files, NoopCatalog("none"))


def sql_name(session: SparkSession, table_format: TableFormat, path: Path | str) -> str:
    """Return a table's name in Spark SQL, which the session knows from here on."""
    for key, value in table_format.session_settings(str(path)).items():
        session.conf.set(key, value)
    return table_format.name(str(path))


def rows_in(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table of either format in a folder."""
    file_format = "iceberg" if (path / "metadata").exists() else "delta"
    return list(rows_at(file_format, path).to_pylist())


def rows_at(
    file_format: str, path: Path | str, options: Mapping[str, str] = NO_OPTIONS
) -> pa.Table:
    """Return a table's rows."""
    if file_format == "iceberg":
        return iceberg_at(path, options).scan().to_arrow()
    return DeltaTable(path, storage_options=dict(options)).to_pyarrow_table()


def files_at(
    file_format: str, path: Path | str, options: Mapping[str, str] = NO_OPTIONS
) -> dict[str, int]:
    """Return the number of rows in each of a table's files, by its name."""
    if file_format == "iceberg":
        tasks = iceberg_at(path, options).scan().plan_files()
        return {task.file.file_path: task.file.record_count for task in tasks}
    actions = DeltaTable(path, storage_options=dict(options)).get_add_actions(flatten=True)
    return dict(zip(actions["path"].to_pylist(), actions["num_records"].to_pylist(), strict=True))
