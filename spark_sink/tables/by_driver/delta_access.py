"""A managed table in Delta, on a local disk or in an object store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.actions import (
    add_action,
    metadata_action,
    remove_action,
)
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.delta.errors import unsupported
from slackwater.spark_sink.output.delta.features import (
    demands_on_changes,
    demands_on_rows,
    has_change_data_feed,
    schema_text,
)
from slackwater.spark_sink.output.delta.rows import DeltaRows
from slackwater.spark_sink.output.delta.snapshot import Action, Snapshot
from slackwater.spark_sink.output.table_files import TableFiles
from slackwater.spark_sink.tables.by_driver.delta_version import MergedVersion
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess, MakeMerge
from slackwater.spark_sink.tables.row_merges.changed_rows import ChangedRows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


class DeltaAccess(DriverAccess):
    """The DriverAccess of a Delta table.

    Args:
        spark: a session.
        commits, files: the table's.
        options: of the object store; see open_object_store().
    """

    def __init__(
        self,
        spark: SparkSession,
        commits: DeltaCommits,
        files: TableFiles,
        options: Mapping[str, str],
    ) -> None:
        super().__init__(spark, commits, files)
        self._commits = commits
        self._data = DataFolder(files.path, options)

    def schema(self) -> StructType:
        """Return the columns as they are now; see DriverAccess."""
        self._commits.refresh()
        return spark_schema(self._commits.snapshot.schema_json)

    def rename_column(self, name: str, new_name: str) -> None:
        """Write the table again: not all readers support column mapping; see DriverAccess."""

        def change(snapshot: Snapshot) -> Sequence[Action]:
            self._require_free(snapshot)
            rows = DeltaRows(self._data, snapshot)
            names = [new_name if one == name else one for one in rows.schema.names]

            def renamed() -> Iterator[pa.Table]:
                for file in snapshot.files:
                    for first, table in rows.read(file, rows.schema):
                        yield rows.without_deleted(file, first, table).rename_columns(names)

            columns = pa.schema(
                [column.with_name(own) for column, own in zip(rows.schema, names, strict=True)]
            )
            text, properties = schema_text(columns, snapshot.properties)
            added = self._written(self._files.writer(()), renamed(), columns)
            return [
                metadata_action(snapshot, schemaString=text, configuration=properties),
                *map(remove_action, snapshot.files.values()),
                *map(add_action, added),
            ]

        self._commits.replace_table(change)

    def _require_free(self, snapshot: Snapshot) -> None:
        """Require that a table has no demands on its rows beyond columns and types."""
        if features := [*demands_on_changes(snapshot), *demands_on_rows(snapshot)]:
            raise unsupported(self._commits.path, features)

    def _merge(self, make: MakeMerge, application: str, version: int) -> None:
        written: list[str] = []

        def change(snapshot: Snapshot) -> Sequence[Action]:
            self._require_free(snapshot)
            merged = MergedVersion(self._data, snapshot)
            changes = ChangedRows() if has_change_data_feed(snapshot) else None
            rows = make(merged.files, merged.schema, changes).rows()
            added = self._written(self._files.writer(()), rows, merged.schema)
            if changes is not None:
                merged.write_changes(changes.tables)
            written[:] = [*(file.name for file in added), *merged.written]
            return merged.actions(added)

        self._commits.rewrite(
            change, application, version, forget=lambda: self._data.remove(written)
        )


def spark_schema(text: str) -> StructType:
    """Return columns, which Delta's log writes as Spark does."""
    from pyspark.sql.types import StructType

    schema: StructType = StructType.fromJson(json.loads(text))
    return schema
