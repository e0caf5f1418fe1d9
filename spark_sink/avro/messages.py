"""Messages in Avro: an epoch's records in an envelope, as rows of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import fastavro
from pyspark.sql import DataFrame

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
    require_whole_rows,
    with_datetimes,
)
from slackwater.spark_sink.envelopes.envelope import Envelope, EnvelopeOptions
from slackwater.spark_sink.envelopes.message_rows import rows_of_messages

TOPIC: Final = "topic"


class AvroMessages:
    """Registers the schemas of what an epoch has, on the driver, and writes its messages.

    Args:
        envelope_options: the envelope.
        registry: takes the schemas.
        by_table: tables share a topic. Subjects are named after topics then and what the schema
            is of (TopicRecordNameStrategy), else after topics alone (TopicNameStrategy).
    """

    def __init__(
        self, envelope_options: EnvelopeOptions, registry: SchemaRegistry, *, by_table: bool
    ) -> None:
        self._envelope_options = with_datetimes(envelope_options)
        self._registry = registry
        self._by_table = by_table

    def messages(self, changes: DataFrame) -> DataFrame:
        """As spark_sink.messages.messages() gives them; key and value are binary.

        Args:
            changes: rows of the output's contract, with the topic of each as TOPIC.

        Raises:
            PartialRowError: an update has not the whole row.
            SchemaRefusedError: the registry does not take a schema.
            PublishError: the registry can't be reached.
        """
        schema_columns = changes.select(TOPIC, "table_name", "column_types", "value_capture_type")
        schema_ids: dict[TableSchema, SchemaIds] = {}
        for row in schema_columns.distinct().collect():
            require_whole_rows(self._envelope_options.envelope, row["value_capture_type"])
            table_schema = TableSchema.of(row[TOPIC], row["table_name"], row["column_types"])
            schema_ids[table_schema] = self._register(table_schema)
        encoder = Encoder(self._envelope_options, schema_ids, self._by_table)
        return rows_of_messages(changes, _wrap(encoder), "binary")

    def resolved(self, topic: str, value: Mapping[str, Any]) -> bytes:
        """A resolved message for a topic.

        Raises:
            SchemaRefusedError: the registry does not take its schema.
            PublishError: the registry can't be reached.
        """
        name = namespace(topic, "", by_table=self._by_table)
        schema = resolved_schema(name, self._envelope_options)
        number = self._registry.register(self._subject(topic, name, "value"), schema)
        return encode(number, fastavro.parse_schema(schema), value) or b""

    def _register(self, table_schema: TableSchema) -> SchemaIds:
        name = namespace(table_schema.topic, table_schema.table, by_table=self._by_table)
        key = value = None
        if self._envelope_options.envelope is not Envelope.RECORD:
            subject = self._subject(table_schema.topic, name, "key")
            key = self._registry.register(subject, key_schema(table_schema, name))
        schema = value_schema(table_schema, name, self._envelope_options)
        if schema is not None:
            value = self._registry.register(
                self._subject(table_schema.topic, name, "value"), schema
            )
        return SchemaIds(key, value)

    def _subject(self, topic: str, name: str, what: str) -> str:
        if not self._by_table:
            return f"{topic}-{what}"
        return f"{topic}-{name}.{'Key' if what == 'key' else 'Envelope'}"


def _wrap(encoder: Encoder) -> Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]:
    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        plain = {name: value for name, value in record.items() if name != TOPIC}
        made = encoder.messages(plain, record[TOPIC])
        return [(record["table_name"], key, value) for key, value in made]

    return wrap
