"""Commits to Iceberg tables that are prepared, made, and prepared again after a conflict."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.output.iceberg.commit_once import (
    commit_once,
    commit_together,
    commits_together,
    still_follows,
)
from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors
from slackwater.spark_sink.output.iceberg.owned_table import OwnedTable

_TRIES: Final = 20


class PendingCommit:
    """A commit to one table.

    Args:
        owned: the table.
        change: adds the changes to a transaction of the table as it is.
        is_made: whether the table has the commit.
        forget: removes the files of an attempt that was refused.
        on_made: called when it has been made.
    """

    def __init__(
        self,
        owned: OwnedTable,
        change: Callable[[Transaction, Table], None],
        is_made: Callable[[], bool] = lambda: False,
        forget: Callable[[Table], None] = lambda _: None,
        on_made: Callable[[], None] = lambda: None,
    ) -> None:
        self.owned = owned
        self._change = change
        self._is_made = is_made
        self._forget = forget
        self._on_made = on_made
        self._transaction: Transaction | None = None

    @property
    def transaction(self) -> Transaction:
        """The changes. After prepare() has returned True."""
        assert self._transaction is not None  # noqa: S101 - see above
        return self._transaction

    def prepare(self) -> bool:
        """Collect the changes to the table as it is; return False if it has the commit."""
        if self._transaction is None:
            table = self.owned.loaded()
            if self._is_made():
                return False
            transaction = table.transaction()
            try:
                self._change(transaction, table)
            finally:
                # From here on, the table may have changed, even after an error.
                self.owned.refresh()
            self._transaction = transaction
        return True

    def still_follows(self) -> bool:
        """Return whether the table is unchanged since the changes were collected."""
        self.owned.refresh()
        return still_follows(self.transaction, self.owned.loaded())

    def forget(self) -> None:
        """Remove the files that prepare() has written."""
        if self._transaction is not None:
            self._forget(self._transaction._table)
            self._transaction = None

    def made(self) -> None:
        """Note that the table has the commit."""
        self.owned.leave_as(self.transaction._table)
        self._on_made()


def commit(commits: Sequence[PendingCommit]) -> bool:
    """Make commits to tables of one catalog, and return False if the tables have all of them.

    Others' commits may come between, such as those of a compaction.

    Args:
        commits: of tables in one catalog, for which commits_together() is true; or one.

    Raises:
        ObjectStoreError, PublishError: see TableCommits.append(), and iceberg_errors().
    """
    path = commits[0].owned.path
    if len(commits) > 1:
        path = f"{path} and {len(commits) - 1} more tables"
    for _ in range(_TRIES):
        with iceberg_errors(path):
            pending = [one for one in commits if one.prepare()]
            try:
                _commit([one.transaction for one in pending])
            except CommitFailedException:
                _renew(pending)
                continue
        for one in pending:
            one.made()
        return bool(pending)
    raise commit_conflict(path)


def _commit(transactions: Sequence[Transaction]) -> None:
    if len(transactions) == 1:
        commit_once(transactions[0])
    elif transactions:
        commit_together(transactions)


def _renew(commits: Sequence[PendingCommit]) -> None:
    """Have changes collected again, if others have changed their table."""
    try:
        for one in commits:
            if len(commits) == 1 or not one.still_follows():
                one.forget()
    except BaseException:
        forget_all(commits)
        raise


def forget_all(commits: Sequence[PendingCommit]) -> None:
    """Remove the files prepared for commits that are not made."""
    for one in commits:
        one.forget()


class CommitsAtOnce:
    """The commits to tables of one catalog that are to become visible at one moment."""

    def __init__(self) -> None:
        self._collected: list[PendingCommit] | None = None

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Make the commits added inside at the end, in one request if the catalog supports that.

        Raises:
            ObjectStoreError, PublishError: see commit().
        """
        collected: list[PendingCommit] = []
        self._collected = collected
        try:
            yield
        except BaseException:
            forget_all(collected)
            raise
        finally:
            self._collected = None
        if collected:
            commit(collected)

    def add(self, pending: PendingCommit) -> bool:
        """Prepare a commit for later, or make it now; return False if the table has it.

        Raises:
            ObjectStoreError, PublishError: see commit().
        """
        if self._collected is None or not commits_together(pending.owned.catalog):
            return commit([pending])
        with iceberg_errors(pending.owned.path):
            is_new = pending.prepare()
        if is_new:
            self._collected.append(pending)
        return is_new
