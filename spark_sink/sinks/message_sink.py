"""The sinks of messages: an epoch's messages, each with its key, in commit order for each key.

A Delivery has them sent, to Kafka or to Pub/Sub, exactly once or at least once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.envelopes.envelope import Envelope, dumps, require_whole_rows
from slackwater.spark_sink.errors import TransactionsUnsupportedError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.message_rows import messages
from slackwater.spark_sink.messaging.delivery import ClosingMessage, Delivery, Mark
from slackwater.spark_sink.messaging.topics import Topics, WrittenTopics
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.staging import StagedByTasks, Staging
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.table_shape import TableShape, learned_shapes
from slackwater.timestamp import datetime_to_ns, datetime_to_rfc3339, ms_to_seconds

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.avro.messages import EncodedMessages
    from slackwater.spark_sink.output.epoch_place import EpochPlace

_log = logging.getLogger(__name__)

# Up to this estimate an epoch's messages may be held by the driver.
_SMALL_BYTES_MAX: Final = 4 * 1024 * 1024
_PARTITION: Final = "partition_token"
# As Debezium's connector for Spanner calls the partition whose children are the first ones, and
# its default between two heartbeats of a partition without changes.
_FIRST_PARTITION: Final = "Parent0"
_IDLE_HEARTBEAT_S: Final = 300.0
_LEARN_S: Final = 60.0
ReadShapes = Callable[[datetime], Mapping[str, TableShape]]


class MessageSink(StagedByTasks):
    """A sink that sends epochs to a service for messages.

    Args:
        place: in which epochs wait for their audit.
        pipeline: the pipeline's name.
        topics: where messages go.
        envelope: of the messages.
        deliveries: the ways in which they may be sent, of which the service takes one: the
            first may be exactly once.
        record_filter: which records are sent.
        encoded: writes the messages with a schema; None for JSON.
        has_uuid: deliveries get the columns that MessageRows adds with it.
    """

    def __init__(
        self,
        place: EpochPlace,
        pipeline: str,
        topics: Topics,
        envelope: Envelope,
        deliveries: Sequence[Delivery],
        record_filter: RecordFilter | None = None,
        encoded: EncodedMessages | None = None,
        *,
        has_uuid: bool = False,
    ) -> None:
        self._pipeline = pipeline
        self._encoded = encoded
        self._topics = topics
        self._envelope = envelope
        self._delivery, *self._others = deliveries
        self._has_uuid = has_uuid
        self._written = WrittenTopics(place)
        self._read_shapes: ReadShapes | None = None
        of_heartbeats = [_PARTITION] if topics.heartbeats else []
        preparation = Preparation(
            record_filter or RecordFilter(),
            distinct=("table_name", "value_capture_type", *of_heartbeats),
            has_message_bytes=True,
        )
        self._staging = Staging(place, preparation)
        self._scanned = self._staging.for_scan()
        self._resolved_at = self._beaten_at = self._learned_at = float("-inf")

    def use_shapes(self, read: ReadShapes) -> None:
        """Set the source of the tables' shapes; see NeedsShapes."""
        self._read_shapes = read

    def position(self, spark: SparkSession) -> OutputPosition | None:
        """Return the position of the output, if the service holds it; see Sink.

        Here it shows whether a broker has transactions.
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
        tokens: Collection[str] = ()
        if summary.written:
            if self._topics.heartbeats is not None:
                tokens = self._staging.distinct(epoch_id, _PARTITION)
            self._prepare_tables(self._staging, epoch_id, low_watermark)
            self._send(self._staging.read_staged(spark, epoch_id), mark)
        self._staging.discard(epoch_id)
        self._close(spark, mark, summary.written, summary.transactions, tokens)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Do nothing: the service has its topics, or makes them itself."""

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
        """Refuse parts of rows and shared topics, and look up the shapes of new tables.

        Args:
            staging: of the epoch, or of the chunk of a scan.
            epoch_id: its number.
            at: its end.
        """
        for capture_type in staging.distinct(epoch_id, "value_capture_type"):
            require_whole_rows(capture_type, self._envelope)
        tables = staging.distinct(epoch_id, "table_name")
        self._written.require_own(self._topics, tables)
        self._learn_shapes(tables, at)

    def _learn_shapes(self, tables: Collection[str], at: datetime) -> None:
        """Look up the shapes of tables that are new here, and of all from time to time.

        A column that was added since then is in its records, but not in those without it.
        """
        envelope, options = self._envelope, self._envelope.options
        now_s = time.monotonic()
        is_fresh = not options.strict or now_s - self._learned_at < _LEARN_S
        is_learned = is_fresh and options.shapes.keys() >= set(tables)
        if self._read_shapes is None or not envelope.needs_shapes or is_learned:
            return
        self._learned_at = now_s
        shapes = learned_shapes(
            options.shapes, self._read_shapes(at), tables, has_columns=options.strict
        )
        self._envelope = replace(envelope, options=replace(options, shapes=shapes))
        if self._encoded is not None:
            self._encoded.use(self._envelope)

    def _send(self, changes: DataFrame, mark: Mark) -> None:
        topic = self._topics.of_changes()
        if self._encoded is None:
            maker = messages(self._envelope, has_row_hash=True, has_uuid=self._has_uuid)
            message_rows = maker.frame(changes)
        else:
            message_rows = self._encoded.messages(changes, topic, has_uuid=self._has_uuid)
        sent_to = self._delivery.send(
            message_rows.withColumn("topic", topic), changes.withColumn("topic", topic), mark
        )
        self._written.add(sent_to)

    def _close(
        self,
        spark: SparkSession,
        mark: Mark,
        records: int,
        transactions: int,
        tokens: Collection[str] = (),
    ) -> None:
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
        if topics.heartbeats is not None:
            closing += self._heartbeats(topics.heartbeats, tokens)
        self._delivery.close(spark, closing, mark)

    def _heartbeats(self, topic: str, tokens: Collection[str]) -> Iterator[ClosingMessage]:
        """Yield a heartbeat for each partition with records, or one for all after a while."""
        now_s = time.monotonic()
        if not tokens and now_s - self._beaten_at < _IDLE_HEARTBEAT_S:
            return
        self._beaten_at = now_s
        for token in sorted(tokens) or [_FIRST_PARTITION]:
            beat = self._envelope.heartbeat(token)
            if beat is None:
                return
            if self._encoded is None:
                text = beat.as_json()
                key, value = ((part or "").encode() for part in (text.key, text.value))
            else:
                key, value = self._encoded.heartbeat(topic, beat)
            yield ClosingMessage(topic, 0, key, value)

    def _resolved_messages(
        self, spark: SparkSession, low_watermark: datetime
    ) -> list[ClosingMessage]:
        closing = []
        counts = self._delivery.partition_counts(spark, self._written.names())
        tables = {topic: self._topics.table_of(topic) for topic in counts}
        if self._envelope.options.strict:
            self._learn_shapes([table for table in tables.values() if table], low_watermark)
        for topic, partitions in counts.items():
            body = self._envelope.resolved(datetime_to_ns(low_watermark), tables[topic])
            if self._encoded is None:
                value = dumps(body.value).encode()
            else:
                value = self._encoded.resolved(topic, body.value, tables[topic])
            closing += [
                ClosingMessage(topic, partition, None, value, self._headers())
                for partition in range(partitions)
            ]
        return closing

    def _headers(self) -> tuple[tuple[str, bytes], ...]:
        """Return the headers of a resolved message."""
        return tuple((name, v.encode()) for name, v in self._envelope.headers(None).items())
