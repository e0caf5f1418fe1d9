"""Avro messages whose schemas a registry has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import fastavro

from slackwater.spark_sink.avro.connect import avro_of_connect
from slackwater.spark_sink.avro.messages import AvroMessages
from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.avro.schemas import (
    TableSchema,
    message_schemas,
    resolved_schema,
)
from slackwater.spark_sink.avro.wire_format import RegistryEncoder, SchemaIds, encode, namespace
from slackwater.spark_sink.envelopes.connect_schema import heartbeat_schemas
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.envelopes.message import MessageBody


class RegisteredMessages(AvroMessages):
    """A maker of an epoch's messages, which registers their schemas on the driver.

    Args:
        envelope: of the messages.
        registry: takes the schemas.
        by_table: tables share a topic. Subjects are then named after topics and records
            (TopicRecordNameStrategy), else after topics alone (TopicNameStrategy).
    """

    def __init__(self, envelope: Envelope, registry: SchemaRegistry, *, by_table: bool) -> None:
        super().__init__(envelope)
        self._registry = registry
        self._by_table = by_table

    def encoder(self, schemas: Collection[TableSchema]) -> RegistryEncoder:
        """Return the encoder of messages whose schemas are registered; see AvroMessages."""
        ids = {each: self._register(each) for each in schemas}
        return RegistryEncoder(self.envelope, ids, self._by_table)

    def resolved(self, topic: str, value: Mapping[str, Any], table: str | None = None) -> bytes:
        """Return the resolved message of a topic; see AvroMessages.

        It has the schema of the topic's other messages, which all have its field. A schema of its
        own would become the latest of the subject, by which consumers read the others, and against
        which the registry checks the next one.
        """
        name = namespace(topic, "", by_table=self._by_table)
        subject = self._subject(topic, name, "value")
        latest = self._registry.latest(subject)
        if latest is None:
            # No message of the topic has a value.
            of_connect = self.envelope.connect_schemas(table or "", ())
            if of_connect is None:
                schema = resolved_schema(name, self.envelope)
            else:
                schema = avro_of_connect(of_connect.value)
            number = self._registry.register(subject, schema)
        else:
            number, schema = latest
        return encode(number, fastavro.parse_schema(schema), value) or b""

    def heartbeat(self, topic: str, beat: MessageBody) -> tuple[bytes, bytes]:
        """Return the key and the value of a heartbeat; see AvroMessages."""
        schemas = heartbeat_schemas()
        parts = []
        for part, schema, content in (
            ("key", schemas.key, beat.key),
            ("value", schemas.value, beat.value),
        ):
            written = avro_of_connect(schema)
            number = self._registry.register(f"{topic}-{part}", written)
            parts.append(encode(number, fastavro.parse_schema(written), content) or b"")
        return parts[0], parts[1]

    def _register(self, table_schema: TableSchema) -> SchemaIds:
        topic = table_schema.topic
        name = namespace(topic, table_schema.table, by_table=self._by_table)
        key = value = None
        of_keys, of_values = message_schemas(table_schema, name, self.envelope)
        if self.envelope.has_key:
            key = self._registry.register(self._subject(topic, name, "key"), of_keys)
        if of_values is not None:
            value = self._registry.register(self._subject(topic, name, "value"), of_values)
        return SchemaIds(key, value)

    def _subject(self, topic: str, name: str, part: str) -> str:
        if not self._by_table:
            return f"{topic}-{part}"
        return f"{topic}-{name}.{'Key' if part == 'key' else 'Envelope'}"
