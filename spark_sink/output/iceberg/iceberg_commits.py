"""Commits to an Iceberg table, in any catalog, without Spark: by pyiceberg.

A commit follows the snapshot that its table was loaded with, and is refused if that is no longer
the current one (Iceberg's specification, "Optimistic Concurrency"). Each has in its snapshot's
summary the application and its version, the low watermark, and the process that made it. A process
that takes the pipeline over makes a snapshot without files. So a former owner's commit no longer
follows the current snapshot, and when it loads the table again, it finds another owner.
"""

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation

from slackwater.spark_sink.output.iceberg.columns import data_file, iceberg_schema
from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors
from slackwater.spark_sink.output.iceberg.owned_table import OwnedTable
from slackwater.spark_sink.output.iceberg.pending_commits import (
    CommitsAtOnce,
    PendingCommit,
    commit,
)
from slackwater.spark_sink.output.iceberg.snapshots import PUBLISHED_SNAPSHOT
from slackwater.spark_sink.output.iceberg.table_maintenance import compact, expire
from slackwater.spark_sink.output.iceberg.table_place import TablePlace
from slackwater.spark_sink.output.table_commits import DataFile


class IcebergCommits(OwnedTable):
    """The TableCommits of an Iceberg table; OwnedTable explains the arguments.

    Args:
        at_once: collects commits that are to become visible at one moment, with those to other
            tables; None for none.
    """

    def __init__(
        self,
        place: TablePlace,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
        at_once: CommitsAtOnce | None = None,
    ) -> None:
        super().__init__(place, application, properties, has_lines=has_lines)
        self._at_once = at_once or CommitsAtOnce()

    @property
    def version_properties(self) -> Mapping[str, str]:
        """The current snapshot; see TableCommits."""
        current = self.loaded().metadata.current_snapshot_id
        return {} if current is None else {PUBLISHED_SNAPSHOT: str(current)}

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in one commit; see TableCommits."""
        added = iceberg_schema(schema)

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.update_schema().union_by_name(added).commit()

        commit([PendingCommit(self, change)])

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, in one commit."""

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.update_schema().rename_column(name, new_name).commit()

        commit([PendingCommit(self, change)])

    def append(
        self,
        files: Sequence[DataFile],
        application: str,
        version: int,
        line: str | None = None,
    ) -> bool:
        """Add files in one commit, and return False if it has been made before."""

        def change(transaction: Transaction, table: Table) -> None:
            added = [data_file(table, file) for file in files]
            summary = self._summary(application, version, line)
            self._add_snapshot(transaction, summary, added)

        return self._commit_version(change, application, version)

    def rewrite(
        self,
        changes: Callable[[Table], tuple[Sequence[IcebergFile], Sequence[IcebergFile]]],
        application: str,
        version: int,
    ) -> bool:
        """Replace files in one commit, and return False if it has been made before.

        Args:
            changes: returns the files that go and those that come, of data and of deletes, for the
                table as it is. It is called again if another process has committed meanwhile.
            application, version: see append().
        """

        written: list[IcebergFile] = []

        def change(transaction: Transaction, table: Table) -> None:
            removed, added = changes(table)
            written[:] = added
            summary = self._summary(application, version)
            self._add_snapshot(transaction, summary, added, removed, operation=Operation.OVERWRITE)

        def forget(table: Table) -> None:
            for file in written:
                table.io.delete(file.file_path)

        return self._commit_version(change, application, version, forget)

    def set_properties(self, properties: Callable[[], Mapping[str, str]]) -> None:
        """Set properties, in one commit; see TableCommits."""

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.set_properties(dict(properties()))

        self._at_once.add(PendingCommit(self, change, lambda: not properties()))

    def _commit_version(
        self,
        change: Callable[[Transaction, Table], None],
        application: str,
        version: int,
        forget: Callable[[Table], None] = lambda _: None,
    ) -> bool:
        def on_made() -> None:
            self._versions[application] = version

        def is_made() -> bool:
            return self.has_committed(application, version)

        return self._at_once.add(PendingCommit(self, change, is_made, forget, on_made))

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old snapshots and files; see TableCommits."""
        with iceberg_errors(self.path):
            try:
                compact(self.catalog, self._place.identifier)
            finally:
                # Also of a table that can't be compacted.
                if keep_s is not None:
                    expire(self.catalog, self._place.identifier, self.application, keep_s)
