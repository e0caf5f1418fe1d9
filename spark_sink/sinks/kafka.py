"""The sink kafka: an epoch's messages, each with its key, in commit order for each key.

Exactly once for consumers that read committed messages, or at least once; see kafka.exactly_once
and kafka.at_least_once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from slackwater.setting_values import Duration, TextMapping
from slackwater.spark_sink.envelopes.envelope import Envelope, require_whole_rows
from slackwater.spark_sink.envelopes.event import WITH_OLD_VALUES
from slackwater.spark_sink.envelopes.message import TABLE, Origin, dumps
from slackwater.spark_sink.envelopes.registry import envelopes, with_changefeed_options
from slackwater.spark_sink.errors import PartialRowError, TransactionsUnsupportedError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import JSON
from slackwater.spark_sink.kafka.at_least_once import AtLeastOnce
from slackwater.spark_sink.kafka.client_settings import librdkafka_settings
from slackwater.spark_sink.kafka.dead_letters import KafkaDeadLetters
from slackwater.spark_sink.kafka.delivery import ClosingMessage, Delivery, Mark
from slackwater.spark_sink.kafka.topics import SERVERS, Topics
from slackwater.spark_sink.kafka.written_topics import WrittenTopics
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.staging import StagedByTasks, Staging
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeName, EnvelopeSettings
from slackwater.spark_sink.sql.columns import Column
from slackwater.timestamp import datetime_to_ns, datetime_to_rfc3339, ms_to_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.avro.messages import AvroMessages
    from slackwater.spark_sink.output.epoch_place import EpochPlace

_log = logging.getLogger(__name__)

AVRO: Final = "avro"
# Up to this estimate an epoch's messages may be held by the driver.
_SMALL_BYTES_MAX: Final = 4 * 1024 * 1024
ReadKeyColumns = Callable[[datetime], Mapping[str, Sequence[str]]]


class KafkaSettings(EnvelopeSettings):
    """The settings of Kafka.

    Attributes:
        topic: the topic's name; {table} in it stands for the table's full name.
        watermarks_topic: the topic of low watermarks; None for none.
        resolved: the least milliseconds between two resolved messages; None for none of them.
        confluent_schema_registry: the URL of the schema registry, for Avro.
        options: of Spark's Kafka sink.
        key_in_value, topic_in_value, diff, tombstones, schemas_enable: see EnvelopeOptions.
        delivery: None for exactly_once if the broker has transactions, otherwise at_least_once.
        bad_records: stop at a message that the broker refuses, or set its record aside.
        shards: the number of transactions that an epoch is sent in.
        positions_topic: the topic to which the consumer group's offsets belong; None for the
            group's name.
    """

    formats = (JSON, AVRO)

    kind: str = "kafka"
    format: str = JSON
    envelope: EnvelopeName = "wrapped"
    topic: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]|\{table\})+$")] = TABLE
    watermarks_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    resolved: Annotated[int, Duration()] | None = None
    confluent_schema_registry: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    options: TextMapping = Field(default_factory=dict)
    key_in_value: bool = False
    topic_in_value: bool = False
    diff: bool = False
    tombstones: bool = True
    schemas_enable: bool = False
    delivery: Literal["exactly_once", "at_least_once"] | None = None
    bad_records: Literal["stop", "dead_letter"] = "stop"
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

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> Kafka:
        """Return the sink; see SinkSettings."""
        topics, envelope, avro = self._topics, self.make_envelope(origin), None
        if self.confluent_schema_registry is not None:
            from slackwater.spark_sink.avro.messages import AvroMessages
            from slackwater.spark_sink.avro.registry import SchemaRegistry

            registry = SchemaRegistry(self.confluent_schema_registry)
            avro = AvroMessages(envelope, registry, by_table=not topics.has_one_per_table)
        return Kafka(
            self.make_place(),
            origin.pipeline,
            topics,
            envelope,
            self._deliveries(origin.pipeline, topics),
            record_filter,
            avro,
            keeps_bad_records=self.bad_records == "dead_letter",
        )

    @property
    def _topics(self) -> Topics:
        return Topics(self.topic, self.watermarks_topic, self.resolved, self.options)

    def _deliveries(self, pipeline: str, topics: Topics) -> Sequence[Delivery]:
        if self.delivery == "at_least_once":
            return [AtLeastOnce(topics)]
        # It needs librdkafka, which the other way does not.
        from slackwater.spark_sink.kafka.exactly_once import ExactlyOnce
        from slackwater.spark_sink.kafka.transaction import Ids

        name = f"slackwater.{pipeline}"
        ids = Ids(group=name, topic=self.positions_topic or name)
        settings = librdkafka_settings(topics.client_settings)
        exactly_once = ExactlyOnce(pipeline, ids, settings, self.shards)
        return [exactly_once] if self.delivery else [exactly_once, AtLeastOnce(topics)]

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope, with the options that only messages have."""
        envelope = super().make_envelope(origin)
        options = replace(
            envelope.options,
            key_in_value=self.key_in_value,
            topic=self.topic if self.topic_in_value else None,
            diff=self.diff,
            tombstones=self.tombstones,
            schemas_enable=self.schemas_enable,
        )
        return replace(envelope, options=options)

    def check(self) -> None:
        """Ask also a broker, and the schema registry; see SinkSettings."""
        # With Kafka's client, which is not installed without the extra kafka.
        from slackwater.spark_sink.kafka.broker import require_broker

        super().check()
        require_broker(librdkafka_settings(self._topics.client_settings))
        if self.confluent_schema_registry is not None:
            from slackwater.spark_sink.avro.registry import SchemaRegistry

            SchemaRegistry(self.confluent_schema_registry).require_answer()

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Refuse tables without a topic of their own; see SinkSettings."""
        self._topics.require_own(tables)

    def check_capture_type(self, capture_type: str) -> None:
        """Check that rows will be whole where a part of one looks whole; see SinkSettings."""
        envelope, is_avro = envelopes()[self.envelope], self.format == AVRO
        require_whole_rows(capture_type, envelope, is_avro=is_avro)
        if self.diff and capture_type != WITH_OLD_VALUES:
            raise PartialRowError(
                f"changes of value capture type {capture_type} lack the row before the change,"
                " which sink.diff adds.",
                f"Let the change stream capture it (value_capture_type = '{WITH_OLD_VALUES}')",
            )

    @model_validator(mode="before")
    @classmethod
    def _staging_path(cls, values: Any) -> Any:
        """Set path, where epochs wait for their audit, unless the settings do."""
        if not isinstance(values, dict):
            return values
        return {"path": f"{values.get('checkpoint')}-staging", **values}

    @model_validator(mode="after")
    def _options_of_envelope(self) -> Self:
        if self.key_in_value or self.topic_in_value:
            names = with_changefeed_options()
            if self.envelope not in names or self.format == AVRO:
                raise ValueError(
                    f"key_in_value and topic_in_value go with envelope {' and '.join(names)} in"
                    " format json"
                )
        if self.diff and self.envelope != "wrapped":
            raise ValueError("diff goes with envelope wrapped; the others have the row before")
        if self.schemas_enable and (self.envelope != "debezium" or self.format == AVRO):
            raise ValueError("schemas_enable goes with envelope debezium in format json")
        return self

    @model_validator(mode="after")
    def _servers_and_registry(self) -> Self:
        if SERVERS not in self.options:
            raise ValueError(f"options needs {SERVERS}: HOST:PORT,...")
        if (self.confluent_schema_registry is not None) != (self.format == AVRO):
            raise ValueError(
                "format avro needs confluent_schema_registry, and no other does: the registry's URL"
            )
        return self


class Kafka(StagedByTasks):
    """A sink that sends epochs to Kafka.

    Args:
        place: in which epochs wait for their audit.
        pipeline: the pipeline's name.
        topics: where messages go.
        envelope: of the messages.
        deliveries: the ways in which they may be sent, of which the broker takes one: the first
            may be exactly once.
        record_filter: which records are sent.
        avro: writes the messages in Avro; None for JSON.
        keeps_bad_records: records of messages that the broker refuses are set aside; otherwise
            they stop the pipeline.
    """

    def __init__(
        self,
        place: EpochPlace,
        pipeline: str,
        topics: Topics,
        envelope: Envelope,
        deliveries: Sequence[Delivery],
        record_filter: RecordFilter | None = None,
        avro: AvroMessages | None = None,
        *,
        keeps_bad_records: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._avro = avro
        self._topics = topics
        self._envelope = envelope
        self._delivery, *self._others = deliveries
        self._place = place
        self._keeps_bad_records = keeps_bad_records
        self._written = WrittenTopics(place)
        self._read_key_columns: ReadKeyColumns | None = None
        preparation = Preparation(
            record_filter or RecordFilter(),
            distinct=("table_name", "value_capture_type"),
            has_message_bytes=True,
        )
        self._staging = Staging(place, preparation)
        self._scanned = self._staging.for_scan()
        self._resolved_at = float("-inf")

    def use_key_columns(self, read: ReadKeyColumns) -> None:
        """Set the source of the order of a key's columns; see KeyOrder."""
        self._read_key_columns = read

    def position(self, spark: SparkSession) -> OutputPosition | None:
        """Return the position of the output, if Kafka holds it; see Sink.

        Here it shows whether the broker has transactions.
        """
        self._staging.take_over(spark)
        try:
            position = self._delivery.position(spark)
        except TransactionsUnsupportedError as error:
            if not self._others:
                raise
            _log.warning("sending at least once, not exactly once: %s", error.message)
            position, self._delivery = None, self._others[0]
        self._others = []
        return position

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Send a staged epoch, then its low watermark. See Sink.

        Consumers of committed messages see the shards of an epoch appear one by one; the resolved
        messages say when it is complete.
        """
        message_bytes = self._staging.message_bytes(epoch_id)
        is_small = message_bytes is not None and message_bytes <= _SMALL_BYTES_MAX
        mark = Mark(low_watermark, epoch_id, is_small=is_small)
        if summary.written:
            self._prepare_tables(self._staging, epoch_id, low_watermark)
            self._send(self._staging.read_staged(spark, epoch_id), mark)
        self._staging.discard(epoch_id)
        self._close(spark, mark, summary.written, summary.transactions)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: Kafka creates its topics itself, if it is allowed to."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Send a chunk; see Sink."""
        spark = rows.sparkSession
        records = self._scanned.stage(rows, chunk).records
        mark = Mark(low_watermark, chunk=chunk)
        self._prepare_tables(self._scanned, chunk, low_watermark)
        self._send(self._scanned.read_staged(spark, chunk), mark)
        self._scanned.discard(chunk)
        return records

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Send the scan's low watermark; see Sink."""
        self._close(spark, Mark(low_watermark), records, 0)

    def _prepare_tables(self, staging: Staging, epoch_id: int, at: datetime) -> None:
        """Refuse parts of rows and shared topics, and look up the primary keys of new tables.

        Args:
            staging: of the epoch, or of the chunk of a scan.
            epoch_id: its number.
            at: its end.
        """
        for capture_type in staging.distinct(epoch_id, "value_capture_type"):
            require_whole_rows(capture_type, self._envelope)
        tables = staging.distinct(epoch_id, "table_name")
        self._written.require_own(self._topics, tables)
        options = self._envelope.options
        is_known = not self._envelope.has_key_order or options.key_columns.keys() >= tables
        if self._read_key_columns is None or is_known:
            return
        # A table that was dropped since then keeps the order of its columns from here on.
        unknown = dict.fromkeys(tables, ())
        learned = {**unknown, **self._read_key_columns(at), **options.key_columns}
        self._envelope = replace(self._envelope, options=replace(options, key_columns=learned))

    def _send(self, changes: DataFrame, mark: Mark) -> None:
        topic = self._topics.of_changes()
        if self._avro is None:
            message_rows = messages(changes, self._envelope, has_row_hash=True)
        else:
            message_rows = self._avro.messages(changes, topic)
        delivery = self._delivery
        send = (
            KafkaDeadLetters(self._place, delivery).send
            if self._keeps_bad_records
            else delivery.send
        )
        sent_to = send(
            message_rows.withColumn("topic", topic), changes.withColumn("topic", topic), mark
        )
        self._written.add(sent_to)

    def _close(self, spark: SparkSession, mark: Mark, records: int, transactions: int) -> None:
        """Send, after the records, that everything up to the low watermark was sent."""
        topics, now_s = self._topics, time.monotonic()
        closing = []
        if topics.resolved_ms is not None and (
            mark.epoch_id is None or now_s - self._resolved_at >= ms_to_seconds(topics.resolved_ms)
        ):
            self._resolved_at = now_s
            closing = self._resolved_messages(spark, mark.low_watermark)
        if topics.watermarks is not None and (records or closing):
            line = {
                "epoch": mark.epoch_id,
                "low_watermark": datetime_to_rfc3339(mark.low_watermark),
                "records": records,
                "transactions": transactions,
                "committed_at": datetime_to_rfc3339(datetime.now(UTC)),
            }
            key = self._pipeline.encode()
            closing.append(ClosingMessage(topics.watermarks, None, key, dumps(line).encode()))
        self._delivery.close(spark, closing, mark)

    def _resolved_messages(
        self, spark: SparkSession, low_watermark: datetime
    ) -> list[ClosingMessage]:
        body = self._envelope.resolved(datetime_to_ns(low_watermark))
        closing = []
        counts = self._delivery.partition_counts(spark, self._written.names())
        for topic, partitions in counts.items():
            if self._avro is None:
                value = dumps(body.value).encode()
            else:
                value = self._avro.resolved(topic, body.value)
            closing += [
                ClosingMessage(topic, partition, None, value) for partition in range(partitions)
            ]
        return closing
