"""A version of a Delta table that an epoch is merged into."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.actions import (
    add_action,
    changes_action,
    remove_action,
)
from slackwater.spark_sink.output.delta.deletion_vectors import encoded
from slackwater.spark_sink.output.delta.features import (
    may_get_deletion_vectors,
    with_deletion_vectors,
)
from slackwater.spark_sink.output.delta.rows import DeltaRows
from slackwater.spark_sink.output.delta.snapshot import Action, Snapshot
from slackwater.spark_sink.output.table_commits import DataFile
from slackwater.spark_sink.tables.row_merges.changed_rows import changes_schema

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
