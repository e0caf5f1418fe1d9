"""A managed table in Delta, on a local disk or in an object store, without Spark's writers.

Tasks write its files, or the driver those of a small epoch; delta-rs commits them. A process takes
each table over that there is. One that it finds later it has to have created itself: another
process may have written to any other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.output.delta_commits import DeltaCommits
from slackwater.spark_sink.output.file_writer import (
    FileWriter,
    WrittenFile,
    written_by_tasks,
    written_files_of,
)
from slackwater.spark_sink.output.table_files import data_files, table_files
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.by_driver.table_rows import read_rows, spark_schema
from slackwater.spark_sink.tables.managed_table import (
    SOURCE_TABLE_PROPERTY,
    AppendId,
    MissingColumn,
)

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


class DeltaAccess:
    """One table; see TableAccess.

    Args:
        spark: a session.
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
        application: names the pipeline in transaction identifiers.
    """

    def __init__(
        self, spark: SparkSession, path: str, options: Mapping[str, str], application: str
    ) -> None:
        self._spark = spark
        self._files = table_files(path, options)
        # The watermark log's lines are the sink's.
        self._commits = DeltaCommits(self._files.path, options, application, has_lines=False)

    def take_over(self) -> int | None:
        """Fence former owners, and return the last epoch's version; None without a table.

        Raises:
            FileSystemError, ObjectStoreError, PublishError: see TableFiles and DeltaCommits.
        """
        self._files.take_over(self._spark)
        self._commits.take_over()
        return self._commits.last_version(self._commits.application)

    def exists(self) -> bool:
        """Return whether this process has taken the table over, or created it."""
        return self._commits.is_owner

    def source_table(self) -> str | None:
        """Return the name in the table's property; see TableAccess."""
        return self._commits.property(SOURCE_TABLE_PROPERTY)

    def schema(self) -> StructType:
        """Return the columns as they are now; see TableAccess."""
        self._commits.refresh()
        return spark_schema(self._commits.schema_json)

    def create(self, definitions: str, properties: Mapping[str, str]) -> None:
        """Create the table, unless another process has; see TableAccess.

        Raises:
            FileSystemError, PublishError: see TableFiles.take_over() and DeltaCommits.open().
        """
        self._files.take_over(self._spark)
        self._commits.properties = dict(properties)
        self._commits.open(_arrow_schema(definitions), ())

    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns; see TableAccess."""
        by_struct: defaultdict[str, list[str]] = defaultdict(list)
        definitions = []
        for column in columns:
            if column.struct is None:
                definitions.append(f"{identifier(column.name)} {column.kind}")
            else:
                by_struct[column.struct].append(f"{identifier(column.name)}: {column.kind}")
        structs = (f"{name} STRUCT<{', '.join(fields)}>" for name, fields in by_struct.items())
        self._commits.add_columns(_arrow_schema(", ".join([*definitions, *structs])))

    def rename_column(self, name: str, new_name: str) -> None:
        """Write the table again; see TableAccess."""

        def renamed(table: DeltaTable) -> pa.RecordBatchReader:
            schema, batches = read_rows(table, self._files.path, self._commits.options)
            names = [new_name if field.name == name else field.name for field in schema]
            fields = [field.with_name(own) for field, own in zip(schema, names, strict=True)]
            rows = (batch.rename_columns(names) for batch in batches)
            return pa.RecordBatchReader.from_batches(pa.schema(fields), rows)

        self._commits.rewrite(renamed)

    def append(self, rows: DataFrame, append_id: AppendId) -> None:
        """Have tasks write rows, and commit them; see TableAccess."""
        if not self._has(append_id):
            writer = self._writer(arrow_schema_of(rows.schema))
            self._commit(written_by_tasks(rows, writer), append_id)

    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has it, without a job of Spark's.

        Raises:
            ObjectStoreError, PublishError: see DeltaCommits.append().
        """
        if not self._has(append_id):
            self._commit(written_files_of(self._writer(rows.schema), rows), append_id)

    def _has(self, append_id: AppendId) -> bool:
        return self._commits.has_committed(append_id.application, append_id.version)

    def _writer(self, schema: pa.Schema) -> FileWriter:
        # Somebody may have altered the table, or ask for more of its rows.
        self._commits.open(schema, ())
        return self._files.writer(self._commits.partition_columns)

    def _commit(self, written: Sequence[WrittenFile], append_id: AppendId) -> None:
        files = data_files(self._files, written)
        self._commits.append(files, append_id.application, append_id.version)
        self._files.discard([])


def _arrow_schema(definitions: str) -> pa.Schema:
    """Return columns as CREATE TABLE lists them."""
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(definitions)
    return arrow_schema_of(StructType(list(columns)))  # type: ignore[call-overload]
