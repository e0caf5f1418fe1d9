"""Where a DuckLake is: its catalog, and the folder or bucket with its files."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from slackwater.spark_sink.errors import DuckLakeError, PostgresqlError
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.output.small_files import without_scheme
from slackwater.spark_sink.tables.by_transaction.names import literal
from slackwater.spark_sink.tables.in_postgresql.address import connection_url, require_url

_SQLITE: Final = "sqlite:///"
# In milliseconds: a commit of another process takes less.
_BUSY_MAX: Final = 30_000
# As of an epoch in PostgreSQL: a role's limits, and others' locks, do not hold it up for ever.
_SESSION: Final = (
    "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0 -c lock_timeout=30s"
)


@dataclass(frozen=True, slots=True)
class LakeAddress:
    """Where a DuckLake is.

    Attributes:
        catalog: the URL of a database, sqlite:///FILE or postgresql://...
        files: the folder or URL of its files.
        options: of the object store with them; see open_object_store().
    """

    catalog: str
    files: str
    options: Mapping[str, str]

    @property
    def is_in_postgresql(self) -> bool:
        """Whether the catalog is on a server of PostgreSQL's."""
        return not self.catalog.startswith(_SQLITE)

    @property
    def catalog_file(self) -> str:
        """The file of a catalog in SQLite."""
        return self.catalog.removeprefix(_SQLITE)

    def attached(self, application: str, root: str, *, is_made: bool) -> str:
        """Return the statement that attaches it as `lake`.

        Args:
            application: names the connection to a server.
            root: the folder of its files as this process has it.
            is_made: it is made if it is not there.
        """
        options = [
            f"DATA_PATH {literal(root)}",
            "OVERRIDE_DATA_PATH true",
            f"CREATE_IF_NOT_EXISTS {str(is_made).lower()}",
        ]
        if self.is_in_postgresql:
            catalog = f"postgres:{connection_url(self.catalog, application, _SESSION)}"
        else:
            catalog = f"sqlite:{self.catalog_file}"
            options += ["META_JOURNAL_MODE 'WAL'", f"META_BUSY_TIMEOUT {_BUSY_MAX}"]
        return f"ATTACH {literal(f'ducklake:{catalog}')} AS lake ({', '.join(options)})"


def lake_address(path: str, catalog: str | None, options: Mapping[str, str]) -> LakeAddress:
    """Return where a lake is, by the settings of a sink.

    Args:
        path: the folder or URL below which it has its files.
        catalog: the URL of its catalog; None for a file in that folder.
        options: of the object store with the path.

    Raises:
        DuckLakeError: there can't be one.
    """
    if catalog is None and is_object_store(path):
        raise DuckLakeError(
            "path is in an object store, which can't hold the catalog: set catalog to"
            " postgresql://user@host/database or sqlite:///lake.sqlite."
        )
    folder = without_scheme(path)
    if catalog is None:
        catalog = f"{_SQLITE}{folder}/catalog.sqlite"
    elif catalog.startswith(_SQLITE):
        catalog = f"{_SQLITE}{os.path.abspath(catalog.removeprefix(_SQLITE))}"
    else:
        try:
            require_url(catalog)
        except PostgresqlError as error:
            raise DuckLakeError(error.message.replace("path", "catalog", 1), error.hint) from error
    return LakeAddress(catalog, f"{folder}/data_files", options)
