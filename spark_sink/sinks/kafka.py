"""The sink kafka: an epoch's messages, each with its key, in commit order for each key.

At least once: an epoch that fails halfway is sent again, with the same messages but for the times
at which they were read. Without failures nothing is sent twice.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, Self

from pydantic import Field, model_validator

from slackwater.setting_values import DurationMs, TextMapping
from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.spark_sink.envelopes.event import WITH_OLD_VALUES
from slackwater.spark_sink.envelopes.message import Origin, dumps
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.errors import PartialRowError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import JSON
from slackwater.spark_sink.java import jvm_of
from slackwater.spark_sink.message_rows import ORDER, messages
from slackwater.spark_sink.output.staging import Staging
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sinks.sink_settings import EnvelopeName, EnvelopeSettings, Kind
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.rebuild_view import WHOLE_ROW_CAPTURE_TYPES
from slackwater.timestamp import datetime_to_ns, datetime_to_rfc3339, ms_to_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.avro.messages import AvroMessages

AVRO: Final = "avro"
TABLE: Final = "{table}"
_SERVERS: Final = "kafka.bootstrap.servers"
_ILLEGAL: Final = "[^A-Za-z0-9._-]"
_PREFIX: Final = "kafka."


class KafkaSettings(EnvelopeSettings):
    """The settings of Kafka.

    Attributes:
        topic: the topic's name; {table} in it stands for the table's full name.
        watermarks_topic: the topic of low watermarks; None for none.
        resolved: the least milliseconds between two resolved messages; None for none of them.
        confluent_schema_registry: the URL of the schema registry, for Avro.
        options: of Spark's Kafka sink.
        key_in_value, topic_in_value, diff, tombstones: see EnvelopeOptions.
    """

    formats = (JSON, AVRO)

    kind: Kind = "kafka"
    format: str = JSON
    envelope: EnvelopeName = "wrapped"
    topic: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]|\{table\})+$")] = TABLE
    watermarks_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    resolved: DurationMs | None = None
    confluent_schema_registry: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    options: TextMapping = Field(default_factory=dict)
    key_in_value: bool = False
    topic_in_value: bool = False
    diff: bool = False
    tombstones: bool = True

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
        topics = Topics(self.topic, self.watermarks_topic, self.resolved, self.options)
        envelope, avro = self.make_envelope(origin), None
        if self.confluent_schema_registry is not None:
            from slackwater.spark_sink.avro.messages import AvroMessages
            from slackwater.spark_sink.avro.registry import SchemaRegistry

            registry = SchemaRegistry(self.confluent_schema_registry)
            avro = AvroMessages(envelope, registry, by_table=not topics.has_one_per_table)
        return Kafka(self.path, origin.pipeline, topics, envelope, record_filter, avro)

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope, with the options that only messages have."""
        envelope = super().make_envelope(origin)
        options = replace(
            envelope.options,
            key_in_value=self.key_in_value,
            topic=self.topic if self.topic_in_value else None,
            diff=self.diff,
            tombstones=self.tombstones,
        )
        return replace(envelope, options=options)

    def check(self) -> None:
        """Ask the schema registry for an answer; see SinkSettings."""
        if self.confluent_schema_registry is not None:
            from slackwater.spark_sink.avro.registry import SchemaRegistry

            SchemaRegistry(self.confluent_schema_registry).require_answer()

    def check_capture_type(self, capture_type: str) -> None:
        """Check that rows will be whole where a part of one looks whole; see SinkSettings."""
        envelope = envelopes()[self.envelope]
        if self.confluent_schema_registry is not None:
            from slackwater.spark_sink.avro.wire_format import require_whole_rows

            require_whole_rows(capture_type, needs_whole_rows=envelope.needs_whole_rows)
        if envelope.shows_rows_after and capture_type not in WHOLE_ROW_CAPTURE_TYPES:
            raise PartialRowError(
                f"changes of value capture type {capture_type} lack the whole row, which consumers"
                f" of the envelope {self.envelope} take a message's columns for.",
                "Let the change stream capture it: ALTER CHANGE STREAM … SET OPTIONS"
                " (value_capture_type = 'NEW_ROW'), and start after that; or choose the envelope"
                " flat, debezium or record",
            )
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
        envelope = envelopes()[self.envelope]
        if self.key_in_value or self.topic_in_value:
            names = [n for n, made in envelopes().items() if made.has_changefeed_options]
            if not envelope.has_changefeed_options or self.format == AVRO:
                raise ValueError(
                    f"key_in_value and topic_in_value go with envelope {' and '.join(names)} in"
                    " format json"
                )
        if self.diff and self.envelope != "wrapped":
            raise ValueError("diff goes with envelope wrapped; the others have the row before")
        return self

    @model_validator(mode="after")
    def _servers_and_registry(self) -> Self:
        if _SERVERS not in self.options:
            raise ValueError(f"options needs {_SERVERS}: HOST:PORT,...")
        if (self.confluent_schema_registry is not None) != (self.format == AVRO):
            raise ValueError(
                "format avro needs confluent_schema_registry, and no other does: the registry's URL"
            )
        return self


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that messages go to.

    Attributes:
        changes: the topic's name; TABLE in it stands for the table's full name.
        watermarks: the topic of low watermarks; None for none.
        resolved_ms: the least milliseconds between two resolved messages; None to send none.
        options: of Spark's Kafka sink: kafka.bootstrap.servers and others.
    """

    changes: str
    watermarks: str | None
    resolved_ms: int | None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_one_per_table(self) -> bool:
        """Whether each table has its own topic."""
        return TABLE in self.changes


class Kafka:
    """Sends epochs to Kafka, at least once.

    Args:
        staging: a directory in which epochs wait for their audit.
        pipeline: the pipeline's name.
        topics: where messages go.
        envelope: of the messages.
        record_filter: which records are sent.
        avro: writes the messages in Avro; None for JSON.
    """

    def __init__(
        self,
        staging: str,
        pipeline: str,
        topics: Topics,
        envelope: Envelope,
        record_filter: RecordFilter | None = None,
        avro: AvroMessages | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._avro = avro
        self._topics = topics
        self._envelope = envelope
        self._staging = Staging(staging, "parquet", record_filter)
        self._scanned = self._staging.for_scan()
        self._resolved_at = float("-inf")

    def position(self, spark: SparkSession) -> OutputPosition | None:  # noqa: ARG002
        """Return None: Kafka is not read again."""
        return None

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Stage an epoch beside the output; see Sink."""
        return self._staging.stage(epoch, epoch_id)

    def publish(
        self, spark: SparkSession, epoch_id: int, summary: EpochSummary, low_watermark: datetime
    ) -> None:
        """Send a staged epoch, then its low watermark; a replay sends it again. See Sink."""
        if summary.written:
            self._send(self._staging.read_staged(spark, epoch_id))
        self._staging.epoch_directory(spark).discard(epoch_id)
        self._publish_watermark(
            spark, epoch_id, summary.written, summary.transactions, low_watermark, is_last=False
        )

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: Kafka creates its topics itself, if it is allowed to."""

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:  # noqa: ARG002
        """Send a chunk, again if it is tried again; see Sink."""
        spark = rows.sparkSession
        records = self._scanned.stage(rows, chunk).records
        self._send(self._scanned.read_staged(spark, chunk))
        self._scanned.epoch_directory(spark).discard(chunk)
        return records

    def end_scan(self, spark: SparkSession, records: int, low_watermark: datetime) -> None:
        """Send the scan's low watermark; see Sink."""
        self._publish_watermark(spark, None, records, 0, low_watermark, is_last=True)

    def _send(self, changes: DataFrame) -> None:
        from pyspark.sql import functions as F

        topic = F.lit(self._topics.changes)
        if self._topics.has_one_per_table:
            name = F.regexp_replace("table_name", _ILLEGAL, "_")
            topic = F.replace(topic, F.lit(TABLE), name)
        if self._avro is None:
            message_rows = messages(changes, self._envelope)
        else:
            message_rows = self._avro.messages(changes, topic)
        # Messages with the same key go through one task, in order.
        in_order = message_rows.repartition("table_name", "key").sortWithinPartitions(*ORDER)
        self._write(in_order.select(topic.alias("topic"), "key", "value"))

    def _publish_watermark(
        self,
        spark: SparkSession,
        epoch_id: int | None,
        records: int,
        transactions: int,
        low_watermark: datetime,
        *,
        is_last: bool,
    ) -> None:
        """Send, after the records, that everything up to the low watermark was sent."""
        topics, now = self._topics, time.monotonic()
        rows: list[tuple[str, int | None, bytes | None, bytes]] = []
        if topics.resolved_ms is not None and (
            is_last or now - self._resolved_at >= ms_to_seconds(topics.resolved_ms)
        ):
            self._resolved_at = now
            body = self._envelope.resolved(datetime_to_ns(low_watermark))
            for topic, partitions in self._partitions(spark).items():
                value = self._resolved(topic, body.value)
                rows += [(topic, partition, None, value) for partition in range(partitions)]
        if topics.watermarks is not None and (records or rows):
            line = {
                "epoch": epoch_id,
                "low_watermark": datetime_to_rfc3339(low_watermark),
                "records": records,
                "transactions": transactions,
                "committed_at": datetime_to_rfc3339(datetime.now(UTC)),
            }
            rows.append((topics.watermarks, None, self._pipeline.encode(), dumps(line).encode()))
        if rows:
            schema = "topic string, partition int, key binary, value binary"
            self._write(spark.createDataFrame(rows, schema))

    def _resolved(self, topic: str, value: Mapping[str, Any]) -> bytes:
        return dumps(value).encode() if self._avro is None else self._avro.resolved(topic, value)

    def _write(self, rows: DataFrame) -> None:
        rows.write.format("kafka").options(**self._topics.options).save()

    def _partitions(self, spark: SparkSession) -> dict[str, int]:
        """Return the number of partitions of each topic that messages go to."""
        jvm = jvm_of(spark)
        parts = (re.escape(part) for part in self._topics.changes.split(TABLE))
        pattern = re.compile("[A-Za-z0-9._-]+".join(parts))
        with self._admin(jvm) as admin:
            names = jvm.java.util.ArrayList()
            for name in admin.listTopics().names().get():
                if pattern.fullmatch(name) and name != self._topics.watermarks:
                    names.add(name)
            topics = admin.describeTopics(names).allTopicNames().get()
            return {name: topics[name].partitions().size() for name in topics}

    @contextmanager
    def _admin(self, jvm: Any) -> Iterator[Any]:
        properties = jvm.java.util.Properties()
        for name, value in self._topics.options.items():
            if name.startswith(_PREFIX):
                properties.put(name.removeprefix(_PREFIX), value)
        admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(properties)
        try:
            yield admin
        finally:
            admin.close()
