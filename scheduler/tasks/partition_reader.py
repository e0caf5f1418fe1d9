"""Reading one partition in an epoch: to its end or through the low watermark, and how it is shown.

Plain code for one thread, without a store: it says how the reading ended, and who called it writes
that down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Final, Protocol

from slackwater.reader.change_stream import Dialect
from slackwater.reader.errors import StartOutsidePartitionError, UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.query_outcome import QueryOutcome, outcome_of
from slackwater.reader.records import ChildPartitionsRecord
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.audit import PartitionAudit
from slackwater.scheduler.epoch import Cut, watermark_for_start
from slackwater.scheduler.read_options import Proof
from slackwater.scheduler.tasks.cut_filter import CutFilter
from slackwater.state.models import Partition, Plan
from slackwater.timestamp import NANOSECONDS_PER_SECOND, format_rfc3339

_log = logging.getLogger(__name__)

_STEP_BACK_FIRST_NS: Final = NANOSECONDS_PER_SECOND
_STEPS_BACK_MAX: Final = 15
_STEP_PAUSE_S: Final = 0.2


class Query(Protocol):
    """A running partition query."""

    @property
    def watermark_ns(self) -> int:
        """The partition is complete through this time."""

    @property
    def open_ms(self) -> int:
        """Since it was opened."""

    @property
    def silent_ms(self) -> int:
        """How long Spanner has been waited for."""

    @property
    def retried(self) -> Mapping[str, int]:
        """How often it was opened again, by gRPC's status code."""

    stalls: int

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        """Read until Spanner ended it with OK, or the consumer has enough."""

    def cancel(self) -> None:
        """End it early, from another thread."""


class PartitionReader(Protocol):
    """Whatever can query partitions: Spanner, or a simulated stream."""

    def query(self, token: str, start_ns: int, end_ns: int | None) -> Query:
        """The records of a partition token over [start, end], or to its end.

        Raises while iterating:
            StartOutsidePartitionError: the partition ended before the start.
        """


class SpannerPartitions:
    """Partition queries of one database's change stream."""

    def __init__(self, connection: Connection, dialect: Dialect, heartbeat_ms: int) -> None:
        self._connection = connection
        self._dialect = dialect
        self._heartbeat_ms = heartbeat_ms

    def query(self, token: str, start_ns: int, end_ns: int | None) -> PartitionQuery:
        """See PartitionReader."""
        return PartitionQuery(
            self._connection,
            self._dialect,
            partition_token=token,
            start_timestamp_ns=start_ns,
            end_timestamp_ns=end_ns,
            heartbeat_ms=self._heartbeat_ms,
        )


Running = Callable[[Partition, Query], AbstractContextManager[None]]


class PartitionReading:
    """Reads partitions of one plan.

    Args:
        plan: the epoch's.
        reader: where the records come from.
        proof: what shows that a partition was read through.
        running: entered for the time of each query, so that it can be seen and cancelled.
    """

    def __init__(self, plan: Plan, reader: PartitionReader, proof: Proof, running: Running) -> None:
        self._plan = plan
        self._reader = reader
        self._proof = proof
        self._running = running

    def read(
        self, partition: Partition, start_ns: int, decoder: BatchDecoder, audit: PartitionAudit
    ) -> QueryOutcome:
        """Read a partition from start_ns to its end or the epoch's.

        Args:
            partition: what to read.
            start_ns: its own start, or the epoch's where it began before.
            decoder: takes the data change records.
            audit: sees every record that is delivered.

        Raises:
            ReaderError: what the queries failed with.
        """
        has_ended = (
            partition.end_timestamp_ns is not None
            and partition.end_timestamp_ns <= self._plan.end_ns
        )
        announced: list[ChildPartitionsRecord] = []
        try:
            announced = self._query(partition, start_ns, decoder, audit)
        except StartOutsidePartitionError:
            has_ended = True
        if has_ended and not announced:
            announced = self._recover(partition, start_ns, decoder)
        audit.end()
        return outcome_of(announced, self._plan.end_ns)

    def _recover(
        self, partition: Partition, start_ns: int, decoder: BatchDecoder
    ) -> list[ChildPartitionsRecord]:
        """Find the end of a partition that has ended and did not show it.

        A query with an end_timestamp may end just after its partition did, without the child
        partitions records (apache/beam issue 40232); later starts are refused. They come when it is
        read from before its end. The partition's own records were delivered already.
        """
        step_ns = _STEP_BACK_FIRST_NS
        for _ in range(_STEPS_BACK_MAX):
            earlier_ns = max(partition.start_timestamp_ns, start_ns - step_ns)
            announced: list[ChildPartitionsRecord] = []
            try:
                announced = self._query(partition, earlier_ns, decoder, None)
            except StartOutsidePartitionError:
                if earlier_ns == partition.start_timestamp_ns:
                    raise
            if announced:
                _log.warning(
                    "partition %s had ended unseen before %s; what its children hold up to there"
                    " comes late",
                    partition.token,
                    format_rfc3339(start_ns),
                )
                return announced
            if earlier_ns == partition.start_timestamp_ns:
                # Nothing earlier is left to ask; the answer may be another one in a moment.
                time.sleep(_STEP_PAUSE_S)
            step_ns *= 4
        raise UnavailableError(
            f"partition {partition.token} ended before {format_rfc3339(start_ns)}, and Spanner"
            " does not show its child partitions.",
            "Nothing was skipped: try again later",
        )

    def _query(
        self,
        partition: Partition,
        start_ns: int,
        decoder: BatchDecoder,
        audit: PartitionAudit | None,
    ) -> list[ChildPartitionsRecord]:
        """The child partitions records up to the epoch's end; with an audit, data is delivered."""
        end_ns = self._plan.end_ns
        query = self._reader.query(
            partition.token, start_ns, end_ns if self._proof is Proof.OK else None
        )
        # The query's own start: a child that comes late is read from before the epoch's.
        cut = Cut(watermark_for_start(start_ns), end_ns)
        consumer = CutFilter(partition.token, cut, audit)
        with self._running(partition, query):
            query.run(decoder, consumer)
        return consumer.announced
