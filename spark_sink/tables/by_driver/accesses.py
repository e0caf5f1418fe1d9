"""What writes a managed table by the driver and tasks, for each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.spark_sink.tables.by_driver.delta_access import DeltaAccess
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess
from slackwater.spark_sink.tables.by_driver.iceberg_access import IcebergAccess
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slackwater.spark_sink.tables.table_format import TableFormat


def make_access(
    table_format: TableFormat, spark: SparkSession, path: str, application: str
) -> DriverAccess:
    """Return what writes one table.

    Args:
        table_format: the table's.
        spark: a session.
        path: the table's directory or URL.
        application: names the pipeline in commits.
    """
    if isinstance(table_format, Delta):
        return DeltaAccess(spark, path, table_format.storage_options, application)
    assert isinstance(table_format, Iceberg)  # noqa: S101 - there is no other
    access = IcebergAccess(spark, table_format.place(path), application)
    table_format.accesses[path] = access
    return access
