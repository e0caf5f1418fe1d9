"""Commits of pyiceberg's that are made once, directly after the loaded version of their tables.

pyiceberg's own commit is retried on top of others', as often as the table's property
commit.retry.num-retries says, even if the table has another owner by then.
"""

from collections.abc import Sequence
from typing import Final

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import API_PREFIX, Endpoint, HttpMethod, RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest, Table, TableIdentifier, Transaction
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, AssertTableUUID, TableRequirement
from requests import HTTPError

# Of several tables. Iceberg's REST specification: all of them are changed, or none.
_PATH: Final = "transactions/commit"
_CONFLICT: Final = 409


def commit_once(transaction: Transaction) -> None:
    """Commit the changes of a transaction, and load the result into the transaction's table.

    Raises:
        CommitFailedException: another process has committed since the table was loaded.
        Exception: the commit may have been made; see iceberg_errors().
    """
    transaction._table._do_commit(transaction._updates, _requirements(transaction))


def commits_together(catalog: Catalog) -> bool:
    """Return whether a catalog changes several tables in one request.

    A REST catalog says so when it is asked for its configuration.
    """
    if not isinstance(catalog, RestCatalog):
        return False
    endpoint = Endpoint(http_method=HttpMethod.POST, path=f"{API_PREFIX}/{_PATH}")
    return endpoint in catalog._supported_endpoints


def commit_together(transactions: Sequence[Transaction]) -> None:
    """Commit the changes of transactions of several tables, in one request.

    Args:
        transactions: of tables of one catalog, for which commits_together() is true.

    Raises:
        CommitFailedException: another process has committed to one of the tables since it was
            loaded. None has changed.
        Exception: the commit may have been made; see iceberg_errors().
    """
    catalog = transactions[0]._table.catalog
    assert isinstance(catalog, RestCatalog)  # noqa: S101 - as commits_together() says
    changes = ",".join(map(_request, transactions))
    response = catalog._session.post(
        catalog.url(_PATH), data=f'{{"table-changes":[{changes}]}}'.encode()
    )
    try:
        response.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, {_CONFLICT: CommitFailedException})
    for transaction in transactions:
        # The answer is empty: the tables' new state follows from the changes.
        transaction._table.metadata = transaction.table_metadata


def still_follows(transaction: Transaction, table: Table) -> bool:
    """Return whether a transaction can be committed on top of its table as it was loaded later.

    It was made from the current snapshot and the properties.
    """
    if table.metadata.properties != transaction._table.metadata.properties:
        return False
    try:
        for requirement in _requirements(transaction):
            requirement.validate(table.metadata)
    except CommitFailedException:
        return False
    return True


def _requirements(transaction: Transaction) -> tuple[TableRequirement, ...]:
    metadata = transaction._table.metadata
    return (
        *transaction._requirements,
        AssertTableUUID(uuid=metadata.table_uuid),
        # A REST catalog checks requirements on snapshots, but none on properties and columns.
        AssertRefSnapshotId.model_validate(
            {"ref": MAIN_BRANCH, "snapshot-id": metadata.current_snapshot_id}
        ),
    )


def _request(transaction: Transaction) -> str:
    """Return the changes to one table in JSON."""
    name = transaction._table.name()
    request = CommitTableRequest(
        identifier=TableIdentifier.model_validate({"namespace": name[:-1], "name": name[-1]}),
        requirements=_requirements(transaction),
        updates=transaction._updates,
    )
    text: str = request.model_dump_json()
    return text
