"""A commit of pyiceberg's that is made once, directly after what its table was loaded with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID

if TYPE_CHECKING:
    from pyiceberg.table import Transaction


def commit_once(transaction: Transaction) -> None:
    """Commit what a transaction has collected, and load it into the transaction's table.

    pyiceberg's own commit is put after others' for as often as the table's property
    commit.retry.num-retries says, whoever owns the table then.

    Raises:
        CommitFailedException: another process has committed since the table was loaded.
        Exception: the commit may have been made; see iceberg_errors().
    """
    table = transaction._table
    metadata = table.metadata
    requirements = (
        *transaction._requirements,
        AssertTableUUID(uuid=metadata.table_uuid),
        # A REST catalog compares what a change is about; of properties and columns nothing.
        AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}
        ),
    )
    table._do_commit(transaction._updates, requirements)
