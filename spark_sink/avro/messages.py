"""Avro messages: an epoch's records in an envelope, as rows in Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import fastavro

from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.avro.schemas import (
    TableSchema,
    key_schema,
    resolved_schema,
    value_schema,
)
from slackwater.spark_sink.avro.wire_format import (
    Encoder,
    SchemaIds,
    encode,
    namespace,
    with_datetimes,
)
from slackwater.spark_sink.envelopes.envelope import Envelope, require_whole_rows
from slackwater.spark_sink.message_rows import rows_of_messages

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The column with the topic of each record.
_TOPIC: Final = "topic"


class AvroMessages:
    """A maker of an epoch's messages, which registers their schemas on the driver.

    Args:
        envelope: of the messages.
        registry: takes the schemas.
        by_table: tables share a topic. Subjects are then named after topics and records
            (TopicRecordNameStrategy), else after topics alone (TopicNameStrategy).
    """

    def __init__(self, envelope: Envelope, registry: SchemaRegistry, *, by_table: bool) -> None:
        self._envelope = with_datetimes(envelope)
        self._registry = registry
        self._by_table = by_table

    def messages(self, changes: DataFrame, topic: Column) -> DataFrame:
        """Return a row for each message, as messages() with ROW_HASH; key and value are binary.

        Args:
            changes: rows of the output's contract.
            topic: the topic of each.

        Raises:
            PartialRowError: an update lacks the whole row.
            SchemaRefusedError: the registry rejects a schema.
            PublishError: the registry can't be reached.
        """
        changes = changes.withColumn(_TOPIC, topic)
        schema_columns = changes.select(_TOPIC, "table_name", "column_types", "value_capture_type")
        schema_ids: dict[TableSchema, SchemaIds] = {}
        for row in schema_columns.distinct().collect():
            require_whole_rows(row["value_capture_type"], self._envelope, is_avro=True)
            table_schema = TableSchema.of(row[_TOPIC], row["table_name"], row["column_types"])
            schema_ids[table_schema] = self._register(table_schema)
        encoder = Encoder(self._envelope, schema_ids, self._by_table)
        return rows_of_messages(
            changes, self._envelope, _wrap(encoder), "binary", has_row_hash=True
        )

    def resolved(self, topic: str, value: Mapping[str, Any]) -> bytes:
        """Return the resolved message of a topic.

        It has the schema of the topic's other messages, which all have its field. A schema of its
        own would become the latest of the subject, by which consumers read the others, and against
        which the registry checks the next one.

        Raises:
            SchemaRefusedError: the registry rejects its schema.
            PublishError: the registry can't be reached.
        """
        name = namespace(topic, "", by_table=self._by_table)
        subject = self._subject(topic, name, "value")
        latest = self._registry.latest(subject)
        if latest is None:
            # No message of the topic has a value.
            schema = resolved_schema(name, self._envelope)
            number = self._registry.register(subject, schema)
        else:
            number, schema = latest
        return encode(number, fastavro.parse_schema(schema), value) or b""

    def _register(self, table_schema: TableSchema) -> SchemaIds:
        name = namespace(table_schema.topic, table_schema.table, by_table=self._by_table)
        key = value = None
        if self._envelope.has_key:
            subject = self._subject(table_schema.topic, name, "key")
            key = self._registry.register(subject, key_schema(table_schema, name))
        schema = value_schema(table_schema, name, self._envelope)
        if schema is not None:
            value = self._registry.register(
                self._subject(table_schema.topic, name, "value"), schema
            )
        return SchemaIds(key, value)

    def _subject(self, topic: str, name: str, part: str) -> str:
        if not self._by_table:
            return f"{topic}-{part}"
        return f"{topic}-{name}.{'Key' if part == 'key' else 'Envelope'}"


def _wrap(encoder: Encoder) -> Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]:
    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        plain = {name: value for name, value in record.items() if name != _TOPIC}
        messages = encoder.messages(plain, record[_TOPIC])
        return [(record["table_name"], key, value) for key, value in messages]

    return wrap
