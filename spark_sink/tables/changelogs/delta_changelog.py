"""A typed changelog in Delta, on a local disk or in an object store, without Spark's writers.

Tasks write its files, or the driver those of a small epoch; delta-rs commits them. A process takes
each table over that there is. One that it finds later it has to have created itself: another
process may have written to any other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.output.delta_commits import DeltaCommits
from slackwater.spark_sink.output.file_writer import (
    WrittenFile,
    written_by_tasks,
    written_files_of,
)
from slackwater.spark_sink.output.table_files import data_files, table_files
from slackwater.spark_sink.tables.changelogs.changelog_table import ChangelogTable, struct_type
from slackwater.spark_sink.tables.managed_table import SOURCE_TABLE_PROPERTY, AppendId
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.spark_sink.typed_rows import MODS_MAX, record_columns
from slackwater.typed_changes import in_pieces, typed_changes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.sql.columns import Column


class DeltaChangelog(ChangelogTable):
    """One such table.

    Args:
        spark, path, table, table_format, properties: see ManagedTable.
        application: names the pipeline in transaction identifiers.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableFormat,
        application: str,
        *,
        properties: Mapping[str, str],
    ) -> None:
        super().__init__(spark, path, table, table_format, properties=properties)
        options = table_format.storage_options
        self._files = table_files(path, options)
        self._commits = DeltaCommits(
            self._files.path, options, application, {**properties, SOURCE_TABLE_PROPERTY: table}
        )

    def take_over(self) -> int | None:
        """Fence former owners, and return the last epoch's version; None without a table.

        Raises:
            FileSystemError, ObjectStoreError, PublishError: see TableFiles and DeltaCommits.
        """
        self._files.take_over(self._spark)
        self._commits.take_over()
        return self._commits.last_version(self._commits.application)

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has it; see ManagedTable."""
        if not self._has(append_id):
            self._append(written_by_tasks(rows, self._files.writer(())), append_id)

    def add_records(
        self, records: pa.Table, columns: Sequence[Column], append_id: AppendId
    ) -> None:
        """Append a row for each mod of a few records, without a job of Spark's.

        Args:
            records: rows of the output's contract, of any tables.
            columns: those that the table's records name. After ensure_columns().
            append_id: see add().

        Raises:
            ColumnValueError: a value is not of its column's type.
            ObjectStoreError, PublishError: see DeltaCommits.append().
        """
        if self._has(append_id):
            return
        schema, of_records = arrow_schema_of(self.schema), record_columns(columns, self.schema)
        rows = [
            typed_changes(piece, self._table, schema, of_records)
            for batch in records.to_batches()
            for piece in in_pieces(batch, MODS_MAX)
        ]
        table = pa.Table.from_batches(rows, schema)
        self._append(written_files_of(self._files.writer(()), table), append_id)

    def _has(self, append_id: AppendId) -> bool:
        return self._commits.has_committed(append_id.application, append_id.version)

    def _append(self, written: Sequence[WrittenFile], append_id: AppendId) -> None:
        # Somebody may have asked for more of its rows meanwhile.
        self._commits.open(arrow_schema_of(self.schema), ())
        files = data_files(self._files, written)
        self._commits.append(files, append_id.application, append_id.version)
        self._files.discard([])

    def _exists(self) -> bool:
        return self._commits.is_owner

    def _source_table(self) -> str | None:
        return self._commits.property(SOURCE_TABLE_PROPERTY)

    def _load_schema(self) -> None:
        from pyspark.sql.types import StructType

        self._schema = StructType.fromJson(json.loads(self._commits.schema_json))

    def _create(self, columns: Sequence[Column]) -> None:
        self._files.take_over(self._spark)
        self._commits.open(_arrow_schema(self._column_definitions(columns)), ())

    def _add_columns(self, columns: Sequence[Column]) -> None:
        missing = self._missing_fields(columns)
        definitions = (f"{part} {struct_type(fields)}" for part, fields in missing.items())
        self._commits.add_columns(_arrow_schema(", ".join(definitions)))


def _arrow_schema(definitions: str) -> pa.Schema:
    """Return columns as CREATE TABLE lists them."""
    from pyspark.sql.types import StructType

    columns = StructType.fromDDL(definitions)
    return arrow_schema_of(StructType(list(columns)))  # type: ignore[call-overload]
