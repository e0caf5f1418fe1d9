"""The settings of Kafka: exactly once for consumers that read committed messages, or at least once.

See kafka.exactly_once and kafka.at_least_once.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from slackwater.setting_values import TextMapping
from slackwater.spark_sink.envelopes.envelope import TABLE, Envelope, Origin
from slackwater.spark_sink.envelopes.registry import with_changefeed_options
from slackwater.spark_sink.errors import ColumnNameError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import AVRO, JSON, PROTOBUF
from slackwater.spark_sink.kafka.at_least_once import AtLeastOnce
from slackwater.spark_sink.kafka.client_settings import librdkafka_settings
from slackwater.spark_sink.kafka.dead_letters import KafkaDeadLetters
from slackwater.spark_sink.kafka.topics import SERVERS, KafkaTopics
from slackwater.spark_sink.sinks.message_settings import MessageSettings
from slackwater.spark_sink.sinks.message_sink import MessageSink
from slackwater.spark_sink.sql.columns import Column

if TYPE_CHECKING:
    from slackwater.spark_sink.avro.messages import EncodedMessages
    from slackwater.spark_sink.kafka.exactly_once import ExactlyOnce

# As the information schema spells them.
_JSON_TYPES: Final = ("json", "jsonb")


class KafkaSettings(MessageSettings):
    """The settings of Kafka.

    Attributes:
        confluent_schema_registry: the URL of the schema registry, for Avro and Protobuf.
        options: of Spark's Kafka sink.
        strict: see EnvelopeOptions.
        heartbeats_topic: the topic of the heartbeats that strict has; None for none of them.
        key_in_value, tombstones, headers_json_column_name, extra_headers: see EnvelopeOptions.
        delivery: None for exactly_once if the broker has transactions, otherwise at_least_once.
        shards: the number of transactions that an epoch is sent in.
        positions_topic: the topic to which the consumer group's offsets belong; None for the
            group's name.
    """

    formats = (JSON, AVRO, PROTOBUF)

    kind: str = "kafka"
    confluent_schema_registry: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    options: TextMapping = Field(default_factory=dict)
    key_in_value: bool = False
    tombstones: bool = True
    strict: bool = False
    heartbeats_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    headers_json_column_name: str | None = None
    extra_headers: TextMapping = Field(default_factory=dict)
    delivery: Literal["exactly_once", "at_least_once"] | None = None
    shards: Annotated[int, Field(ge=1, le=1_000)] = 2
    positions_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None

    @staticmethod
    def spark_conf(spark_version: str) -> dict[str, str]:
        """Return a session's settings for Kafka; the jars come from Maven's repository, once.

        Args:
            spark_version: such as 4.1.3.
        """
        return {
            "spark.jars.packages": f"org.apache.spark:spark-sql-kafka-0-10_2.13:{spark_version}",
            # Spark brings these itself.
            "spark.jars.excludes": "org.apache.hadoop:hadoop-client-runtime,org.slf4j:slf4j-api",
        }

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> MessageSink:
        """Return the sink; see SinkSettings."""
        topics, envelope, place = self.topics, self.make_envelope(origin), self.make_place()
        deliveries = self._deliveries(origin, topics, has_headers=envelope.has_headers)
        return MessageSink(
            place,
            origin.pipeline,
            topics,
            envelope,
            [KafkaDeadLetters(place, each) for each in deliveries]
            if self.bad_records == "dead_letter"
            else deliveries,
            record_filter,
            self._encoded_messages(envelope, by_table=not topics.has_one_per_table),
        )

    def _encoded_messages(self, envelope: Envelope, *, by_table: bool) -> EncodedMessages | None:
        if self.confluent_schema_registry is None:
            return None
        # With the libraries of these formats, which JSON does without.
        from slackwater.spark_sink.avro.registered_messages import RegisteredMessages
        from slackwater.spark_sink.avro.registry import SchemaRegistry
        from slackwater.spark_sink.connect.avro import AVRO_CONVERTER
        from slackwater.spark_sink.connect.messages import ConnectMessages
        from slackwater.spark_sink.connect.protobuf import PROTOBUF_CONVERTER

        registry = SchemaRegistry(self.confluent_schema_registry)
        if not self.strict:
            return RegisteredMessages(envelope, registry, by_table=by_table)
        converter = AVRO_CONVERTER if self.format == AVRO else PROTOBUF_CONVERTER
        return ConnectMessages(envelope, registry, converter)

    @property
    def is_visible_in_parts(self) -> bool:
        """Whether it is sent in several transactions; see SinkSettings."""
        return self.shards > 1 and self.delivery != "at_least_once"

    @property
    def in_value(self) -> bool:
        """Whether the settings ask for more in a value; see MessageSettings."""
        return self.key_in_value or self.topic_in_value

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope; tombstones are for compacted topics."""
        envelope = super().make_envelope(origin)
        options = replace(
            envelope.options,
            key_in_value=self.key_in_value,
            tombstones=self.tombstones,
            strict=self.strict,
            run_id=str(uuid.uuid4()),
            headers_json_column_name=self.headers_json_column_name,
            extra_headers=self.extra_headers,
        )
        return replace(envelope, options=options)

    @property
    def topics(self) -> KafkaTopics:
        """Where messages go."""
        return KafkaTopics(
            self.topic, self.watermarks_topic, self.resolved, self.heartbeats_topic, self.options
        )

    def _deliveries(
        self, origin: Origin, topics: KafkaTopics, *, has_headers: bool
    ) -> Sequence[ExactlyOnce | AtLeastOnce]:
        at_least_once = AtLeastOnce(topics, has_headers=has_headers)
        if self.delivery == "at_least_once":
            return [at_least_once]
        # It needs librdkafka, which the other way does not.
        from slackwater.spark_sink.kafka.exactly_once import ExactlyOnce
        from slackwater.spark_sink.kafka.transaction import Ids

        name = f"slackwater.{origin.pipeline}"
        ids = Ids(group=name, topic=self.positions_topic or name)
        settings = librdkafka_settings(topics.client_settings)
        exactly_once = ExactlyOnce(
            origin.pipeline,
            origin.stream_name,
            ids,
            settings,
            self.shards,
            has_headers=has_headers,
            is_cut_by_time=origin.is_cut_by_time,
        )
        return [exactly_once] if self.delivery else [exactly_once, at_least_once]

    def check(self) -> None:
        """Ask also a broker, and the schema registry; see SinkSettings."""
        # With Kafka's client, which is not installed without the extra kafka.
        from slackwater.spark_sink.kafka.broker import require_broker

        super().check()
        require_broker(librdkafka_settings(self.topics.client_settings))
        if self.confluent_schema_registry is not None:
            from slackwater.spark_sink.avro.registry import SchemaRegistry

            SchemaRegistry(self.confluent_schema_registry).require_answer()

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Refuse also tables that lack the column of headers; see SinkSettings."""
        super().check_tables(tables)
        name = self.headers_json_column_name
        for table, columns in tables.items() if name is not None else ():
            kinds = [column.spanner_type for column in columns if column.name == name]
            if not kinds or kinds[0].lower() not in _JSON_TYPES:
                raise ColumnNameError(
                    f"table {table} has no JSON column {name}, which sink.headers_json_column_name"
                    " takes the headers from.",
                    "Add it, or leave the table out with filter.exclude_tables",
                )

    @property
    def is_strict(self) -> bool:
        """Whether columns that a record lacks are null; see MessageSettings."""
        return self.strict

    @model_validator(mode="after")
    def _debezium_alone(self) -> Self:
        if self.strict and (self.envelope != "debezium" or TABLE not in self.topic):
            raise ValueError(
                f"strict goes with envelope debezium, and with {TABLE} in topic, as the connector"
                " has a topic for each table"
            )
        if self.heartbeats_topic is not None and not self.strict:
            raise ValueError("heartbeats_topic goes with strict")
        if self.heartbeats_topic is not None and self.heartbeats_topic == self.watermarks_topic:
            raise ValueError("heartbeats_topic and watermarks_topic are one topic: name another")
        return self

    @model_validator(mode="after")
    def _headers_of_envelope(self) -> Self:
        names = with_changefeed_options()
        has_column = self.headers_json_column_name is not None
        if has_column and (self.envelope not in names or self.format != JSON):
            raise ValueError(
                f"headers_json_column_name goes with envelope {', '.join(names)} in format json"
            )
        if self.extra_headers and self.strict:
            raise ValueError("strict has the connector's headers, and no extra_headers")
        return self

    @model_validator(mode="after")
    def _servers_and_registry(self) -> Self:
        if SERVERS not in self.options:
            raise ValueError(f"options needs {SERVERS}: HOST:PORT,...")
        if (self.confluent_schema_registry is not None) != (self.format != JSON):
            raise ValueError(
                "formats avro and protobuf need confluent_schema_registry, the registry's URL, and"
                " json does not"
            )
        if self.format == PROTOBUF and not self.strict:
            raise ValueError("format protobuf goes with strict")
        return self
