"""A managed table in Delta, on a local disk or in an object store."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.actions import (
    add_action,
    changes_action,
    metadata_action,
    remove_action,
)
from slackwater.spark_sink.output.delta.deletion_vectors import encoded
from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
from slackwater.spark_sink.output.delta.errors import unsupported
from slackwater.spark_sink.output.delta.features import (
    demands_on_changes,
    demands_on_rows,
    has_change_data_feed,
    may_get_deletion_vectors,
    schema_text,
    with_deletion_vectors,
)
from slackwater.spark_sink.output.delta.rows import DeltaRows
from slackwater.spark_sink.output.delta.snapshot import Action, Snapshot
from slackwater.spark_sink.output.table_commits import DataFile
from slackwater.spark_sink.output.table_files import TableFiles
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess, MakeMerge
from slackwater.spark_sink.tables.row_merges.changed_rows import ChangedRows, changes_schema

# In bytes, compressed: a smaller table is written again, so that any reader can read it.
LARGE: Final = 128 << 20


class MergedVersion:
    """One version, and the changes to its files.

    Args:
        data: the table's files.
        snapshot: the version.

    Attributes:
        files: the version's.
        schema: the columns of new files.
        written: the names of new files of marks and of changes.
    """

    def __init__(self, data: DataFolder, snapshot: Snapshot) -> None:
        rows = DeltaRows(data, snapshot)
        is_large = sum(added["size"] for added in snapshot.files.values()) > LARGE
        may_be_marked = is_large and may_get_deletion_vectors(snapshot)
        self.schema = rows.schema
        self.written: list[str] = []
        self._data = data
        self._snapshot = snapshot
        self._actions: list[Action] = []
        self._has_marks = False
        self.files = [_File(self, rows, name, may_be_marked) for name in snapshot.files]

    def actions(self, added: Sequence[DataFile]) -> list[Action]:
        """Return the actions that the commit adds to the log.

        Args:
            added: new files.
        """
        marking = with_deletion_vectors(self._snapshot) if self._has_marks else []
        return [*marking, *self._actions, *map(add_action, added)]

    def replace(self, added: Mapping[str, Any]) -> None:
        """Remove a file."""
        self._actions.append(remove_action(added))

    def write_changes(self, changes: Sequence[pa.Table]) -> None:
        """Write the rows that readers of changes see instead of the changed files."""
        # Also of none: otherwise a reader takes all rows of files that go for changed ones.
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.concat_tables([changes_schema(self.schema).empty_table(), *changes]), sink
        )
        content = sink.getvalue().to_pybytes()
        name = f"_change_data/cdc-{uuid.uuid4().hex}.parquet"
        self._data.add(name, content)
        self.written.append(name)
        self._actions.append(changes_action(name, len(content)))

    def mark(self, added: Mapping[str, Any], deleted: pa.Array) -> None:
        """Replace a file's marks of deleted rows."""
        name, content, descriptor = encoded(deleted)
        self._data.add(name, content)
        self.written.append(name)
        self._has_marks = True
        stats = {**json.loads(added["stats"]), "tightBounds": False}
        again = {
            name: added[name]
            for name in ("path", "partitionValues", "size", "modificationTime", "tags")
            if name in added
        }
        self._actions += [
            remove_action(added),
            {
                "add": {
                    **again,
                    "dataChange": True,
                    "stats": json.dumps(stats),
                    "deletionVector": descriptor,
                }
            },
        ]


class _File:
    """A MergedFile of a Delta table."""

    def __init__(
        self, version: MergedVersion, rows: DeltaRows, name: str, may_be_marked: bool
    ) -> None:
        self._version = version
        self._rows = rows
        self._name = name
        self._added = version._snapshot.files[name]
        self._stats = json.loads(self._added.get("stats") or "{}")
        self.size: int = self._added["size"]
        self.may_be_marked = may_be_marked and "numRecords" in self._stats

    @cached_property
    def rows(self) -> int:
        counted: int | None = self._stats.get("numRecords")
        return self._rows.count(self._name) if counted is None else counted

    def deleted_positions(self) -> pa.Array | None:
        return self._rows.deleted_positions(self._name)

    def bounds(self, column: str) -> tuple[int, int] | None:
        least, greatest = (
            self._stats.get(bound, {}).get(column) for bound in ("minValues", "maxValues")
        )
        return (least, greatest) if type(least) is int and type(greatest) is int else None

    def read(self, columns: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
        return self._rows.read(self._name, columns)

    def replace(self) -> None:
        self._version.replace(self._added)

    def mark(self, deleted: pa.Array) -> None:
        self._version.mark(self._added, deleted)


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
    schema: StructType = StructType.fromJson(json.loads(text))
    return schema
