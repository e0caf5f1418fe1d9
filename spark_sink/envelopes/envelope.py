"""The base classes of envelopes, and of the messages that they make.

An envelope is one module of this folder with one concrete class; registry.py finds it by its name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Final

import orjson

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas
from slackwater.spark_sink.envelopes.changefeed import (
    EnrichedProperty,
    decimal_timestamp,
    headers_of,
)
from slackwater.spark_sink.envelopes.connect_schema import EventSchemas
from slackwater.spark_sink.envelopes.event import Event, Row, events
from slackwater.spark_sink.envelopes.values import (
    TimestampFormat,
    Values,
    json_converter,
    null_object_converter,
)
from slackwater.spark_sink.errors import PartialRowError
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW_CAPTURE_TYPES
from slackwater.spark_sink.sql.table_shape import TableShape
from slackwater.spark_sink.table_names import plain_name
from slackwater.timestamp import datetime_to_rfc3339, us_to_ns

TABLE: Final = "{table}"
ReadEvents = Callable[[Row], Iterator[Event]]


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

    def as_json(self) -> "Message":
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


@dataclass(frozen=True)
class EnvelopeOptions:
    """The options of an envelope.

    Attributes:
        origin: the source that the messages name.
        updated, mvcc_timestamp: add the commit timestamp under these names, as CockroachDB's
            changefeeds do; see Envelope.has_changefeed_options.
        timestamp_format: converts the timestamps of a record to those of the messages.
        key_in_value: add the key to the value; see Envelope.has_changefeed_options.
        key_as_object: that key is an object of its columns, as in Avro, not their values' list.
        topic: the name of the topic to add to the value, in which {table} stands for the table's
            name; None to add none. See Envelope.has_changefeed_options.
        is_value_alone: the destination keeps no key beside the value, so that a value has to name
            its row even if that was deleted.
        diff: add the row before the change, in the envelopes wrapped and enriched.
        tombstones: a message without a value follows a deleted row's, in the envelope debezium.
        schemas_enable: key and value are {"schema": …, "payload": …} in the envelope debezium, as
            Kafka Connect's JsonConverter writes them with its setting of that name.
        strict: the envelope debezium has no difference to the connector's messages.
        run_id: a number of the process that runs the pipeline, for the headers of strict.
        shapes: the tables' columns, by table; see Envelope.needs_shapes. A table that is not here
            has the columns of each record, and its key their order.
        enriched_properties: what the envelope enriched adds.
        sink: the kind of sink that the envelope enriched names.
        headers_json_column_name: the JSON column whose members are a message's headers, and which
            is not in the row; None for none. See Envelope.has_changefeed_options.
        extra_headers: those that all messages of changes have.
        encode_json_value_null_as_object: a JSON null is an object in JSON, and not null.
    """

    origin: Origin
    updated: bool = False
    mvcc_timestamp: bool = False
    timestamp_format: TimestampFormat = datetime_to_rfc3339
    key_in_value: bool = False
    key_as_object: bool = False
    topic: str | None = None
    is_value_alone: bool = False
    diff: bool = False
    tombstones: bool = False
    schemas_enable: bool = False
    strict: bool = False
    run_id: str = ""
    shapes: Mapping[str, TableShape] = field(default_factory=dict, compare=False)
    enriched_properties: tuple[EnrichedProperty, ...] = ()
    sink: str = ""
    headers_json_column_name: str | None = None
    extra_headers: Mapping[str, str] = field(default_factory=dict, hash=False)
    encode_json_value_null_as_object: bool = False


@dataclass(frozen=True)
class Envelope(ABC):
    """A form in which consumers get a change, with the name that they know it by.

    Attributes:
        name: as the setting sink.envelope and the option --envelope take it.
        has_changefeed_options: it takes the options updated, mvcc_timestamp, key_in_value, topic
            and encode_json_value_null_as_object.
        has_key: its messages have a key.
        has_key_order: in JSON its messages show the order of the key's columns, in a list.
        shows_rows_after: it shows rows as they are after a change, without a sign of the columns
            that are missing in a partial row.
        needs_whole_rows: it shows rows. In Avro a column that is missing looks like NULL, so there
            the change stream has to capture whole rows.
        metadata_key: the key of a message's value that holds everything that is not a column of
            the row; None if the value has more than columns anyway.
        options: see EnvelopeOptions.
    """

    name: ClassVar[str]
    has_changefeed_options: ClassVar[bool] = False
    has_key: ClassVar[bool] = True
    has_key_order: ClassVar[bool] = False
    needs_whole_rows: ClassVar[bool] = True
    shows_rows_after: ClassVar[bool] = False
    metadata_key: ClassVar[str | None] = None

    options: EnvelopeOptions

    @abstractmethod
    def bodies(self, record: Row, read_events: ReadEvents = events) -> Iterator[MessageBody]:
        """Yield the messages of a data change record, before they are JSON or Avro.

        Args:
            record: a row of the output's contract, timestamps as datetime in UTC.
            read_events: reads the events of the record, one for each of its mods.

        Raises:
            ValueError: a mod's JSON can't be read, or a value does not have its column's type.
        """

    @abstractmethod
    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema] | None:
        """Return the fields of a message's value in Avro; None if messages have no value."""

    def messages(self, record: Row) -> Iterator[Message]:
        """Yield the messages of a data change record in JSON; see bodies()."""
        return (body.as_json() for body in self.bodies(record, self.json_events))

    def json_events(self, record: Row) -> Iterator[Event]:
        """Read the events of a record for messages in JSON."""
        has_null_objects = self.options.encode_json_value_null_as_object
        made = events(record, null_object_converter if has_null_objects else json_converter)
        column = self.options.headers_json_column_name
        return made if column is None else (event.without(column) for event in made)

    def resolved(self, watermark_ns: int, table: str | None = None) -> MessageBody:  # noqa: ARG002
        """Return the message that no record at or before a low watermark will come any more.

        Args:
            watermark_ns: nanoseconds since the Unix epoch.
            table: the full name of the table that its topic is of; None if tables share it.
        """
        value = {"resolved": decimal_timestamp(watermark_ns)}
        return MessageBody(
            None, None, value if self.metadata_key is None else {self.metadata_key: value}
        )

    @property
    def needs_shapes(self) -> bool:
        """Whether messages show what data change records do not have: the order of a key."""
        return self.has_key_order

    @property
    def has_headers(self) -> bool:
        """Whether messages have headers."""
        return bool(self.options.headers_json_column_name or self.options.extra_headers)

    def headers(self, record: Row | None, mod_number: int = 0) -> Mapping[str, str]:
        """Return the headers of a message.

        Args:
            record: a row of the output's contract; None for a message with a low watermark.
            mod_number: of the change among the record's mods.
        """
        if record is None:
            return {}
        column, headers = self.options.headers_json_column_name, dict(self.options.extra_headers)
        if column is not None:
            headers |= headers_of(record["mods"][mod_number], column)
        return headers

    def connect_schemas(
        self,
        table: str,  # noqa: ARG002
        column_types: Iterable[Mapping[str, Any]],  # noqa: ARG002
    ) -> EventSchemas | None:
        """Return Kafka Connect's schemas, if messages in Avro have them; else None.

        Args:
            table: the full name.
            column_types: of its data change records.
        """
        return None

    def heartbeat(self, token: str) -> MessageBody | None:  # noqa: ARG002
        """Return the message that a partition is read; None if the envelope has none.

        Args:
            token: the partition token.
        """
        return None

    @cached_property
    def timestamp_names(self) -> list[str]:
        """The names under which the commit timestamp is added beside the row."""
        if not self.has_changefeed_options:
            return []
        return [name for name in ("updated", "mvcc_timestamp") if getattr(self.options, name)]

    def key_order(self, table: str, names: Sequence[str]) -> Sequence[str]:
        """Return the names of a primary key's columns in the key's order, where that is known."""
        order = self.options.shapes.get(table, TableShape()).key
        return order if set(order) == set(names) else names

    def key_names(self, record: Row) -> list[str]:
        """Return the names of the primary key's columns, in the key's order where that is known."""
        names = [column["name"] for column in record["column_types"] if column["is_primary_key"]]
        return list(self.key_order(record["table_name"], names))

    def primary_key(self, event: Event) -> Values:
        """Return the primary key's values by column, in the key's order where that is known."""
        names = list(event.keys)
        return {name: event.keys[name] for name in self.key_order(event.table, names)}

    def changefeed_fields(self, event: Event) -> dict[str, Any]:
        """Return the fields that a changefeed's options add to a value: times, key and topic."""
        timestamp = decimal_timestamp(us_to_ns(event.commit_us))
        fields: dict[str, Any] = dict.fromkeys(self.timestamp_names, timestamp)
        if self.options.key_in_value:
            key = self.primary_key(event)
            fields["key"] = key if self.options.key_as_object else list(key.values())
        if self.options.topic is not None:
            fields["topic"] = table_topic(self.options.topic, event.table)
        return fields


class ModEnvelope(Envelope):
    """An envelope with one message for each mod of a record, that is for each row it changed."""

    def bodies(self, record: Row, read_events: ReadEvents = events) -> Iterator[MessageBody]:
        """Yield a message for each mod; see Envelope."""
        return map(self.body, read_events(record))

    @abstractmethod
    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""


def require_whole_rows(
    capture_type: str, envelope: Envelope | type[Envelope], *, is_avro: bool = False
) -> None:
    """Refuse parts of rows where they look whole.

    Args:
        capture_type: the value capture type of a change stream or of a record.
        envelope: of the messages.
        is_avro: they are in Avro, where a column that is not there and NULL are the same.

    Raises:
        PartialRowError: updates lack the whole row, and the envelope shows it.
    """
    if capture_type in WHOLE_ROW_CAPTURE_TYPES:
        return
    if is_avro and envelope.needs_whole_rows:
        reason, remedy = "and in Avro a missing column looks like NULL", "use format json"
    elif envelope.shows_rows_after:
        reason = f"which consumers of the envelope {envelope.name} take a message's columns for"
        remedy = "choose the envelope flat, debezium or record"
    else:
        return
    raise PartialRowError(
        f"changes of value capture type {capture_type} lack the whole row, {reason}.",
        "Let the change stream capture it: ALTER CHANGE STREAM … SET OPTIONS"
        f" (value_capture_type = 'NEW_ROW'), and start after that; or {remedy}",
    )
