"""A message: what an envelope makes of a change, and that as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class MessageBody:
    """What a message says, before it is written as JSON or Avro.

    Attributes:
        table: the table's full name; None in a message about no table, as a resolved one.
        key: None where there is none.
        value: of the message.
        has_value: False where the key says all.
    """

    table: str | None
    key: Any
    value: Any
    has_value: bool = True

    def as_json(self) -> Message:
        """The message in JSON."""
        return Message(
            self.table,
            None if self.key is None else dumps(self.key),
            dumps(self.value) if self.has_value else None,
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message in JSON.

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
