"""Avro messages whose schemas a registry has."""

import json
from collections.abc import Collection, Mapping
from typing import Any

import fastavro

from slackwater.spark_sink.avro.messages import EncodedMessages
from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.avro.schemas import (
    TableSchema,
    key_schema,
    resolved_schema,
    value_schema,
)
from slackwater.spark_sink.avro.wire_format import RegistryEncoder, SchemaIds, encode, namespace
from slackwater.spark_sink.envelopes.envelope import Envelope


class RegisteredMessages(EncodedMessages):
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
        """Return the encoder of messages whose schemas are registered; see EncodedMessages."""
        ids = {each: self._register(each) for each in schemas}
        return RegistryEncoder(self.envelope, ids, self._by_table)

    def resolved(
        self,
        topic: str,
        value: Mapping[str, Any],
        table: str | None = None,  # noqa: ARG002 - the topic's schema has it
    ) -> bytes:
        """Return the resolved message of a topic; see EncodedMessages.

        It has the schema of the topic's other messages, which all have its field. A schema of its
        own would become the latest of the subject, by which consumers read the others, and against
        which the registry checks the next one.
        """
        name = namespace(topic, "", by_table=self._by_table)
        subject = self._subject(topic, name, "value")
        latest = self._registry.latest(subject)
        if latest is None:
            # No message of the topic has a value.
            text = json.dumps(resolved_schema(name, self.envelope))
            latest = self._registry.register(subject, text), text
        number, text = latest
        return encode(number, fastavro.parse_schema(json.loads(text)), value) or b""

    def _register(self, table_schema: TableSchema) -> SchemaIds:
        topic = table_schema.topic
        name = namespace(topic, table_schema.table, by_table=self._by_table)
        schemas = {
            "key": key_schema(table_schema, name) if self.envelope.has_key else None,
            "value": value_schema(table_schema, name, self.envelope),
        }
        numbers = (
            schema and self._registry.register(self._subject(topic, name, part), json.dumps(schema))
            for part, schema in schemas.items()
        )
        return SchemaIds(*numbers)

    def _subject(self, topic: str, name: str, part: str) -> str:
        if not self._by_table:
            return f"{topic}-{part}"
        return f"{topic}-{name}.{'Key' if part == 'key' else 'Envelope'}"
