"""The change stream to read: its address, checked, and the request options of its queries."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from slackwater.endpoint import SERVICE, Endpoint
from slackwater.reader.errors import ChangeStreamNameError

_PATTERNS = {
    # Domain-scoped projects look like example.com:project.
    "project": re.compile(r"(?:[a-z0-9.-]+:)?[a-z][a-z0-9-]{2,61}[a-z0-9]"),
    "instance": re.compile(r"[a-z][a-z0-9-]{0,62}[a-z0-9]"),
    "database": re.compile(r"[a-z][a-z0-9_-]{0,28}[a-z0-9]"),
    # The name becomes part of a function's name in SQL, where no parameter can stand.
    "change_stream": re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}"),
}


class Dialect(StrEnum):
    """The SQL dialects of a database, by Spanner's names."""

    GOOGLE_STANDARD_SQL = "GOOGLE_STANDARD_SQL"
    POSTGRESQL = "POSTGRESQL"


class PartitionMode(StrEnum):
    """The ways in which a change stream's partitions follow its keys, by Spanner's names.

    IMMUTABLE_KEY_RANGE: a partition holds the same keys all its life; when they are split or merged
        it ends, and child partitions continue it.
    MUTABLE_KEY_RANGE: keys move between partitions that live on.
    """

    IMMUTABLE_KEY_RANGE = "IMMUTABLE_KEY_RANGE"
    MUTABLE_KEY_RANGE = "MUTABLE_KEY_RANGE"


@dataclass(frozen=True, slots=True)
class ChangeStream:
    """The address of a change stream and the request options of its queries.

    Attributes:
        project, instance, database, change_stream: names, without paths.
        database_role: fine-grained access control role that the session takes; None for none.
        priority: "low", "medium" or "high"; None for Spanner's default.
        request_tag: shown in Spanner's query statistics; None for none.
        directed_read: DirectedReadOptions as a mapping in protobuf's JSON form; None for none.
        endpoint: where Spanner answers.

    Raises:
        ChangeStreamNameError: a name is malformed, so that it can't exist in Spanner.
    """

    project: str
    instance: str
    database: str
    change_stream: str
    database_role: str | None = None
    priority: str | None = None
    request_tag: str | None = None
    directed_read: Mapping[str, Any] | None = None
    endpoint: Endpoint = SERVICE

    def __post_init__(self) -> None:
        for field, pattern in _PATTERNS.items():
            value = getattr(self, field)
            if not pattern.fullmatch(value):
                raise ChangeStreamNameError(
                    f"{field} {value!r} is not a valid name in Spanner.",
                    f"It must match {pattern.pattern}",
                )

    @property
    def database_path(self) -> str:
        """Return projects/P/instances/I/databases/D."""
        return f"projects/{self.project}/instances/{self.instance}/databases/{self.database}"

    @property
    def path(self) -> str:
        """Return the database's path and the stream's name, which together identify the stream."""
        return f"{self.database_path}/changeStreams/{self.change_stream}"
