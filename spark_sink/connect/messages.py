"""Messages by Kafka Connect's schemas, which the envelope knows of each table."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from slackwater.spark_sink.avro.messages import EncodedMessages
from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.avro.schemas import TableSchema
from slackwater.spark_sink.avro.types import connect_avro_converter
from slackwater.spark_sink.avro.wire_format import SchemaIds, number_bytes
from slackwater.spark_sink.connect.converter import Converter, Write
from slackwater.spark_sink.envelopes.connect_schema import (
    ConnectSchema,
    EventSchemas,
    heartbeat_schemas,
)
from slackwater.spark_sink.envelopes.envelope import Envelope, MessageBody
from slackwater.spark_sink.envelopes.event import Event, Row, events
from slackwater.spark_sink.errors import ColumnNameError
from slackwater.spark_sink.sql.table_shape import TableShape


@dataclass(frozen=True)
class ConnectEncoder:
    """An encoder of messages whose schemas a registry has; see avro.messages.Encoder.

    Attributes:
        envelope: it has Kafka Connect's schemas.
        ids: the numbers of the tables' schemas.
        converter: writes the messages.
    """

    envelope: Envelope
    ids: Mapping[TableSchema, SchemaIds]
    converter: Converter

    def messages(self, record: Row, topic: str) -> Iterator[tuple[bytes | None, bytes | None]]:
        """Yield the keys and values of a record's messages; see avro.messages.Encoder."""
        table_schema = TableSchema.of(topic, record["table_name"], record["column_types"])
        ids = self.ids[table_schema]
        shape = self.envelope.options.shapes.get(table_schema.table)
        of_key, of_value = _writers(table_schema, self.envelope, self.converter, shape)
        for body in self.envelope.bodies(record, _connect_events):
            named = _with_names(body, self.converter)
            yield _encoded(ids.key, of_key, named.key), _encoded(ids.value, of_value, named.value)


class ConnectMessages(EncodedMessages):
    """A maker of an epoch's messages, which registers their schemas on the driver.

    Subjects are named after topics, as each table has its own.

    Args:
        envelope: of the messages.
        registry: takes the schemas.
        converter: writes the messages.
    """

    def __init__(self, envelope: Envelope, registry: SchemaRegistry, converter: Converter) -> None:
        super().__init__(envelope)
        self._registry, self._converter = registry, converter

    def encoder(self, schemas: Collection[TableSchema]) -> ConnectEncoder:
        """Return the encoder of messages whose schemas are registered; see EncodedMessages.

        Raises:
            ColumnNameError: two columns of a table have one name in the format.
        """
        ids = {}
        for each in schemas:
            of_table = _schemas(self.envelope, each)
            self._require_own_names(each.table, of_table)
            numbers = (
                self._register(f"{each.topic}-key", of_table.key),
                self._register(f"{each.topic}-value", of_table.value),
            )
            ids[each] = SchemaIds(*numbers)
        return ConnectEncoder(self.envelope, ids, self._converter)

    def _require_own_names(self, table: str, schemas: EventSchemas) -> None:
        [row] = (field for field in schemas.value["fields"] if field["field"] == "after")
        columns: dict[str, str] = {}
        for column in (field["field"] for field in row["fields"]):
            other = columns.setdefault(name := self._converter.name(column), column)
            if other != column:
                raise ColumnNameError(
                    f"columns {other!r} and {column!r} of table {table} have one name in"
                    f" {self._converter.schema_type}, {name}.",
                    "Leave one of them out with filter.exclude_columns, or use format json",
                )

    def resolved(self, topic: str, value: Mapping[str, Any], table: str | None = None) -> bytes:
        """Return the resolved message of a topic; see EncodedMessages."""
        of_table = _schemas(self.envelope, TableSchema(topic, table or "", ()))
        return self._written(f"{topic}-value", of_table.value, value)

    def heartbeat(self, topic: str, beat: MessageBody) -> tuple[bytes, bytes]:
        """Return the key and the value of a heartbeat; see EncodedMessages."""
        schemas = heartbeat_schemas()
        return (
            self._written(f"{topic}-key", schemas.key, beat.key),
            self._written(f"{topic}-value", schemas.value, beat.value),
        )

    def _written(self, subject: str, schema: ConnectSchema, value: Any) -> bytes:
        write = self._converter.writer(schema)
        return _encoded(self._register(subject, schema), write, value) or b""

    def _register(self, subject: str, schema: ConnectSchema) -> int:
        text, schema_type = self._converter.text(schema), self._converter.schema_type
        return self._registry.register(subject, text, schema_type)


@lru_cache(maxsize=1_000)
def _writers(
    table_schema: TableSchema,
    envelope: Envelope,
    converter: Converter,
    shape: TableShape | None,  # noqa: ARG001 - envelopes are equal whatever their shapes
) -> tuple[Write, Write]:
    """Return what writes the keys and the values of a table's messages."""
    schemas = _schemas(envelope, table_schema)
    return converter.writer(schemas.key), converter.writer(schemas.value)


def _schemas(envelope: Envelope, table_schema: TableSchema) -> EventSchemas:
    schemas = envelope.connect_schemas(table_schema.table, table_schema.column_types)
    assert schemas is not None  # noqa: S101 - the settings made sure
    return schemas


def _encoded(number: int | None, write: Write, value: Any) -> bytes | None:
    return None if number is None or value is None else number_bytes(number) + write(value)


def _connect_events(record: Row) -> Iterator[Event]:
    return events(record, connect_avro_converter)


def _with_names(body: MessageBody, converter: Converter) -> MessageBody:
    """Return the message with names of columns that the format allows."""
    rows = ("before", "after")
    in_value = {row: _named(body.value[row], converter) for row in rows if body.value}
    value = body.value and {**body.value, **in_value}
    return replace(body, key=_named(body.key, converter), value=value)


def _named(values: Mapping[str, Any] | None, converter: Converter) -> Any:
    return None if values is None else {converter.name(name): v for name, v in values.items()}
