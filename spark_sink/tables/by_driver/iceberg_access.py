"""A managed table in Iceberg, in any catalog; pyiceberg commits to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.iceberg.table_place import TablePlace


class IcebergAccess(DriverAccess):
    """One table; see DriverAccess.

    Args:
        spark: a session.
        place: the table's.
        application: names the pipeline in snapshots.
    """

    def __init__(self, spark: SparkSession, place: TablePlace, application: str) -> None:
        # The watermark log's lines are the sink's.
        self._commits = IcebergCommits(place, application, has_lines=False)
        super().__init__(spark, self._commits, IcebergFiles(self._commits))
        self._commits.connect(spark)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        from pyspark.sql.pandas.types import from_arrow_schema

        self._commits.refresh()
        return from_arrow_schema(self._commits.schema)

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column; files stay as they are; see TableAccess."""
        self._commits.rename_column(name, new_name)
