"""A message: what an envelope makes of a change, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Message:
    """One message.

    Attributes:
        table: the table's full name; None in a message about no table, as a resolved one.
        key: the primary key as JSON, None where there is none.
        value: JSON; None where the key says all.
    """

    table: str | None
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """What messages name as their source.

    Attributes:
        pipeline: the pipeline's name.
        project, instance, database, change_stream: Spanner's names.
    """

    pipeline: str
    project: str
    instance: str
    database: str
    change_stream: str

    @property
    def stream_name(self) -> str:
        """The change stream's resource name."""
        return (
            f"projects/{self.project}/instances/{self.instance}/databases/{self.database}"
            f"/changeStreams/{self.change_stream}"
        )


def dumps(value: Any) -> str:
    """JSON as short as it goes; decimals keep their spelling."""
    return orjson.dumps(value).decode()
