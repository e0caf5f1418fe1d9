"""A managed table in Delta, on a local disk or in an object store; delta-rs commits to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.spark_sink.output.delta_commits import DeltaCommits
from slackwater.spark_sink.output.table_files import table_files
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess
from slackwater.spark_sink.tables.by_driver.table_rows import read_rows, spark_schema

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class DeltaAccess(DriverAccess):
    """One table; see DriverAccess.

    Args:
        spark: a session.
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
        application: names the pipeline in transaction identifiers.
    """

    def __init__(
        self, spark: SparkSession, path: str, options: Mapping[str, str], application: str
    ) -> None:
        files = table_files(path, options)
        # The watermark log's lines are the sink's.
        self._commits = DeltaCommits(files.path, options, application, has_lines=False)
        super().__init__(spark, self._commits, files)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        self._commits.refresh()
        return spark_schema(self._commits.schema_json)

    def rename_column(self, name: str, new_name: str) -> None:
        """Write the table again; see TableAccess."""

        def renamed(table: DeltaTable) -> pa.RecordBatchReader:
            schema, batches = read_rows(table, self._files.path, self._commits.options)
            names = [new_name if field.name == name else field.name for field in schema]
            fields = [field.with_name(own) for field, own in zip(schema, names, strict=True)]
            rows = (batch.rename_columns(names) for batch in batches)
            return pa.RecordBatchReader.from_batches(pa.schema(fields), rows)

        self._commits.rewrite(renamed)
