"""The table whose change stream is read: its address, checked, and the server that has it."""

import re
from dataclasses import dataclass, replace
from typing import Final

from slackwater.endpoint import SERVICE, Endpoint
from slackwater.reader.errors import ChangeStreamNameError

# The name of the row key among the columns.
ROW_KEY: Final = "row_key"
# Of columns; of the row key the first two. Numbers have eight bytes, as HBase's clients write them.
KEY_TYPES: Final = ("BYTES", "STRING")
TYPES: Final = (*KEY_TYPES, "INT64", "FLOAT64")
EMULATOR_VARIABLE: Final = "BIGTABLE_EMULATOR_HOST"
_PATTERNS: Final = {
    "project": re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{2,61}[a-z0-9]"),
    "instance": re.compile(r"[a-z][a-z0-9-]{4,31}[a-z0-9]"),
    "table": re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}"),
    "app_profile": re.compile(r"[_a-zA-Z0-9][-_.a-zA-Z0-9]{0,49}"),
}


@dataclass(frozen=True, slots=True)
class BigtableTable:
    """A table with a change stream.

    Attributes:
        project, instance, table: names, without paths.
        app_profile: the application profile of the reads; it routes to a single cluster.
        endpoint: the server; without a host it is the public service.
        columns: types by the names of cells, family:qualifier, and perhaps of ROW_KEY: the changes
            are read as data change records with these columns. If it is empty, as they are.

    Raises:
        ChangeStreamNameError: a name is malformed, so that it can't exist in Bigtable.
    """

    project: str
    instance: str
    table: str
    app_profile: str = "default"
    endpoint: Endpoint = SERVICE
    columns: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        for field, pattern in _PATTERNS.items():
            value = getattr(self, field)
            if not pattern.fullmatch(value):
                raise ChangeStreamNameError(
                    f"{field} {value!r} is not a valid name in Bigtable.",
                    f"It must match {pattern.pattern}",
                )

    @property
    def path(self) -> str:
        """Return projects/P/instances/I/tables/T."""
        return f"projects/{self.project}/instances/{self.instance}/tables/{self.table}"

    def server(self, api: str) -> Endpoint:
        """Return the server of an API: "bigtable" for data, "bigtableadmin" for tables."""
        domain = self.endpoint.universe_domain or "googleapis.com"
        return replace(self.endpoint, host=self.endpoint.host or f"{api}.{domain}")
