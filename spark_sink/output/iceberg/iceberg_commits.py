"""Commits to an Iceberg table, in any catalog, without Spark: by pyiceberg.

A commit follows the snapshot that its table was loaded with, and is refused if that is no longer
the current one (Iceberg's specification, "Optimistic Concurrency"). Each has in its snapshot's
summary the application and its version, the low watermark, and the process that made it. A process
that takes the pipeline over makes a snapshot without files. So what a former owner holds follows
no more, and when it loads the table again, it finds another owner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.output.iceberg.columns import data_file, iceberg_schema
from slackwater.spark_sink.output.iceberg.commit_once import commit_once
from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors
from slackwater.spark_sink.output.iceberg.owned_table import OwnedTable
from slackwater.spark_sink.output.iceberg.rewrite import Rewrite
from slackwater.spark_sink.output.iceberg.snapshots import PUBLISHED_SNAPSHOT, summary_of
from slackwater.spark_sink.output.table_commits import DataFile

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile

_TRIES: Final = 20


class IcebergCommits(OwnedTable):
    """See TableCommits; OwnedTable says what the arguments are."""

    @property
    def version_properties(self) -> Mapping[str, str]:
        """The current snapshot; see TableCommits."""
        current = self._loaded().metadata.current_snapshot_id
        return {} if current is None else {PUBLISHED_SNAPSHOT: str(current)}

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in one commit; see TableCommits."""
        added = iceberg_schema(schema)

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.update_schema().union_by_name(added).commit()

        self._commit(change)

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, in one commit."""

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.update_schema().rename_column(name, new_name).commit()

        self._commit(change)

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
            self._add_snapshot(transaction, application, version, line, added)

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
            summary = summary_of(application, version, (self.application, self._owner or ""), None)
            Rewrite(transaction, Operation.OVERWRITE, summary, removed, added).commit()

        def forget(table: Table) -> None:
            for file in written:
                table.io.delete(file.file_path)

        return self._commit_version(change, application, version, forget)

    def set_properties(self, properties: Callable[[], Mapping[str, str]]) -> None:
        """Set properties, in one commit; see TableCommits."""

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.set_properties(dict(properties()))

        self._commit(change, lambda: not properties())

    def _commit_version(
        self,
        change: Callable[[Transaction, Table], None],
        application: str,
        version: int,
        forget: Callable[[Table], None] = lambda _: None,
    ) -> bool:
        is_new = self._commit(
            change, lambda: self.has_committed(application, version), forget=forget
        )
        if is_new:
            self._versions[application] = version
        return is_new

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old snapshots and files; see TableCommits."""
        from slackwater.spark_sink.output.iceberg.table_maintenance import compact, expire

        assert self._catalog is not None  # noqa: S101 - after connect()
        with iceberg_errors(self.path):
            try:
                compact(self._catalog, self._place.identifier)
            finally:
                # Also of a table that can't be compacted.
                if keep_s is not None:
                    expire(self._catalog, self._place.identifier, self.application, keep_s)

    def _commit(
        self,
        change: Callable[[Transaction, Table], None],
        is_made: Callable[[], bool] = lambda: False,
        forget: Callable[[Table], None] = lambda _: None,
    ) -> bool:
        """Make a commit that follows the table as it is, and return False if it has been made.

        Others' commits may come between, such as those of a compaction.

        Args:
            change: makes the commit.
            is_made: whether the table has it.
            forget: removes what a refused attempt has left.
        """
        for _ in range(_TRIES):
            table = self._loaded()
            if is_made():
                return False
            with iceberg_errors(self.path):
                transaction = table.transaction()
                try:
                    change(transaction, table)
                finally:
                    # Whatever failed, the table may have changed.
                    self._table = None
                try:
                    commit_once(transaction)
                except CommitFailedException:
                    forget(table)
                    continue
            self._table = table
            return True
        raise commit_conflict(self.path)
