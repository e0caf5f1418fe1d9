"""Avro messages by the schemas of their topics."""

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slackwater.spark_sink.avro.messages import EncodedMessages
from slackwater.spark_sink.avro.revisions import fit_of
from slackwater.spark_sink.avro.schemas import TableSchema, resolved_schema, value_schema
from slackwater.spark_sink.avro.wire_format import avro_bodies, namespace
from slackwater.spark_sink.envelopes.avro_fields import Schema
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.envelopes.event import Row
from slackwater.spark_sink.errors import MessageRefusedError
from slackwater.spark_sink.pubsub.service import Service, is_of_topic
from slackwater.spark_sink.pubsub.topic_schema import Topic, TopicSchema

# Each look is two requests, of which Pub/Sub limits a project's in a minute.
_LOOK_S_MIN: Final = 10.0


@dataclass(frozen=True, slots=True)
class TopicEncoder:
    """An encoder of messages by their topics' schemas; see messages.Encoder.

    Attributes:
        envelope: an envelope from for_avro().
        schemas: of each topic.
    """

    envelope: Envelope
    schemas: Mapping[str, TopicSchema]

    def messages(self, record: Row, topic: str) -> Iterator[tuple[str | None, bytes]]:
        """Yield the keys and values of a record's messages; see messages.Encoder.

        The key decides the order alone, and is that of the mod.
        """
        mods = record["mods"] if self.envelope.has_key else [{"keys": None}]
        for mod, body in zip(mods, avro_bodies(self.envelope, record), strict=True):
            yield mod["keys"], self.schemas[topic].encode(body.value)


class TopicMessages(EncodedMessages):
    """A maker of an epoch's messages, by the schemas that their topics have.

    Args:
        envelope: of the messages.
        service: that has the topics.
        sets_aside: records whose topic is missing are made messages, which the service refuses.
    """

    key_type = "string"

    def __init__(self, envelope: Envelope, service: Service, *, sets_aside: bool = False) -> None:
        super().__init__(envelope)
        self._service, self._sets_aside = service, sets_aside
        self._seen: dict[str, tuple[float, TopicSchema]] = {}

    def encoder(self, schemas: Collection[TableSchema]) -> TopicEncoder:
        """Return the encoder of messages by their topics' schemas; see EncodedMessages."""
        needed: dict[str, list[Schema]] = {}
        for each in schemas:
            needed.setdefault(each.topic, []).append(self._value_schema(each))
        by_topic = {topic: self._schema(topic, each) for topic, each in needed.items()}
        return TopicEncoder(self.envelope, by_topic)

    def resolved(self, topic: str, value: Mapping[str, Any], table: str | None = None) -> bytes:  # noqa: ARG002
        """Return the resolved message of a topic, by its schema; see EncodedMessages."""
        needed = resolved_schema(namespace(topic, "", by_table=False), self.envelope)
        return self._schema(topic, [needed], may_be_missing=True).encode(value)

    def require_schema(self, table_schema: TableSchema) -> None:
        """Ask whether a topic has a schema that fits a table's messages.

        Raises:
            SchemaRefusedError: it has not; the hint has the command that makes it.
            MessageRefusedError, PublishError, NotPermittedError: see Service.topic_schema().
        """
        self._look_up(table_schema.topic, [self._value_schema(table_schema)])

    def _value_schema(self, table_schema: TableSchema) -> Schema:
        return value_schema(
            table_schema, namespace(table_schema.topic, "", by_table=False), self.envelope
        )

    def _schema(
        self, topic: str, needed: Iterable[Schema], *, may_be_missing: bool = False
    ) -> TopicSchema:
        """Return the schema of a topic, which was looked up less than _LOOK_S_MIN ago.

        Messages of former columns are written by the same revision as those of new ones. In the
        binary encoding they could else be taken for messages of a later one.
        """
        needed = list(needed)
        seen_at, schema = self._seen.get(topic, (float("-inf"), None))
        is_fresh = time.monotonic() - seen_at < _LOOK_S_MIN
        if schema is not None and is_fresh and fit_of(schema.definition, needed).is_whole:
            return schema
        try:
            schema = self._look_up(topic, needed)
        except MessageRefusedError as error:
            if not is_of_topic(error) or not (self._sets_aside or may_be_missing):
                raise
            return TopicSchema("", is_json=False, definition=json.dumps(needed[0]))
        self._seen[topic] = (time.monotonic(), schema)
        return schema

    def _look_up(self, name: str, needed: list[Schema]) -> TopicSchema:
        topic = Topic(name, self._service.project)
        try:
            schema = self._service.topic_schema(name)
        except MessageRefusedError as error:
            if not is_of_topic(error):
                raise
            create = topic.create(needed[0], has_topic=False)
            raise MessageRefusedError(
                error.message, f"Create it: {create}", code=error.code, topic=name
            ) from error
        return topic.require_fit(schema, needed)
