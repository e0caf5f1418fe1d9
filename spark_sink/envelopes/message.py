"""The messages that envelopes make, before and after they are written as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import orjson

from slackwater.spark_sink.envelopes.values import Values
from slackwater.spark_sink.table_names import plain_name

TABLE: Final = "{table}"


@dataclass(frozen=True, slots=True)
class MessageBody:
    """The content of a message, before it is written as JSON or Avro.

    Attributes:
        table: the table's full name; None in a message about no table, such as a resolved one.
        key: the columns of the primary key; None in a message without a key.
        value: of the message; None for one without a value, whose key holds everything.
        is_key_list: in JSON the key is the list of its columns' values, as in CockroachDB's
            changefeeds, and not an object.
    """

    table: str | None
    key: Values | None
    value: Any
    is_key_list: bool = False

    def as_json(self) -> Message:
        """Return the message in JSON."""
        key: Any = self.key
        if self.is_key_list and self.key is not None:
            key = list(self.key.values())
        return Message(
            self.table,
            None if key is None else dumps(key),
            None if self.value is None else dumps(self.value),
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message in JSON.

    Attributes:
        table: the table's full name; None in a message about no table, such as a resolved one.
        key: the primary key as JSON; None if the message has no key.
        value: JSON; None if the key holds everything.
    """

    table: str | None
    key: str | None
    value: str | None


@dataclass(frozen=True, slots=True)
class Origin:
    """The source that messages name.

    Attributes:
        pipeline: the pipeline's name.
        project, instance, database, change_stream: Spanner's names; the last two are empty for a
            table of Bigtable's.
        table: its name; empty for a change stream of Spanner's.
    """

    pipeline: str
    project: str
    instance: str
    database: str = ""
    change_stream: str = ""
    table: str = ""

    @property
    def stream_name(self) -> str:
        """The resource name of the change stream, or of the table that has one."""
        instance = f"projects/{self.project}/instances/{self.instance}"
        if self.table:
            return f"{instance}/tables/{self.table}"
        return f"{instance}/databases/{self.database}/changeStreams/{self.change_stream}"

    @property
    def is_cut_by_time(self) -> bool:
        """Whether an epoch has the changes up to its low watermark, and no earlier ones follow."""
        return not self.table


def dumps(value: Any) -> str:
    """Return JSON without spaces; decimals keep their spelling."""
    return orjson.dumps(value).decode()


def table_topic(template: str, table: str) -> str:
    """Return the topic of a table's messages.

    Args:
        template: the topic's name, in which TABLE stands for the table's full name.
        table: the full name.

    Raises:
        TableNameError: the full name is too long.
    """
    return template.replace(TABLE, plain_name(table))
