"""Reads one partition in an epoch: to the partition's end, or through the epoch's.

Runs in the caller's thread and uses no store: it returns how the reading ended, and the caller
records that.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager

from slackwater.reader.errors import StartOutsidePartitionError, UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder
from slackwater.reader.query_outcome import QueryOutcome, outcome_of
from slackwater.reader.records import ChildPartitionsRecord
from slackwater.scheduler.audit import PartitionAudit
from slackwater.scheduler.change_source import PartitionQueries, Query
from slackwater.scheduler.epoch import Cut, watermark_for_start
from slackwater.scheduler.read_options import Proof
from slackwater.scheduler.tasks.cut_filter import CutFilter
from slackwater.scheduler.tasks.look_back import look_back
from slackwater.state.models import Partition, Plan
from slackwater.timestamp import format_rfc3339

_log = logging.getLogger(__name__)

Running = Callable[[Partition, Query], AbstractContextManager[None]]


class PartitionReader:
    """Reads the partitions of one plan.

    Args:
        plan: the epoch's plan.
        source: opens partition queries.
        proof: what proves that a partition was read through the epoch's end.
        running: a context manager entered while a query runs, so that the query can be shown and
            cancelled.
        pause: sleeps for a number of seconds.
    """

    def __init__(
        self,
        plan: Plan,
        source: PartitionQueries,
        proof: Proof,
        running: Running,
        *,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._plan = plan
        self._source = source
        self._proof = proof
        self._running = running
        self._pause = pause

    def read(
        self, partition: Partition, start_ns: int, decoder: BatchDecoder, audit: PartitionAudit
    ) -> QueryOutcome:
        """Read a partition from start_ns to its end or the epoch's, and return how it ended.

        Args:
            partition: the partition to read.
            start_ns: the partition's own start, or the epoch's if the partition began earlier.
            decoder: takes the data change records.
            audit: takes every record that is delivered.

        Raises:
            ReaderError: a query failed.
        """
        has_ended = (
            partition.end_timestamp_ns is not None
            and partition.end_timestamp_ns <= self._plan.end_ns
        )
        announced: list[ChildPartitionsRecord] = []
        is_refused = False
        try:
            announced = self._query(partition, start_ns, decoder, audit, self._proof)
        except StartOutsidePartitionError:
            has_ended = is_refused = True
        if has_ended and not announced:
            announced = self._recover(partition, start_ns, decoder)
        if is_refused:
            _require_end_before(start_ns, partition, announced)
        audit.end()
        return outcome_of(announced, self._plan.end_ns)

    def _recover(
        self, partition: Partition, start_ns: int, decoder: BatchDecoder
    ) -> list[ChildPartitionsRecord]:
        """Return the child partitions records of a partition whose end no query has shown.

        The partition's data change records were delivered already, so no others are taken.
        """
        announced = look_back(
            partition.start_timestamp_ns,
            start_ns,
            lambda earlier_ns: self._query(partition, earlier_ns, decoder, None, Proof.RECORD),
            bool,
            self._pause,
        )
        if announced is not None:
            _log.warning(
                "partition %s ended before %s, and no query had shown it; its children's"
                " records up to that time are delivered late",
                partition.token,
                format_rfc3339(start_ns),
            )
            return announced
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
        proof: Proof,
    ) -> list[ChildPartitionsRecord]:
        """Run one query, and return its child partitions records up to the epoch's end.

        Data change records are delivered only if there is an audit.
        """
        end_ns = self._plan.end_ns
        query = self._source.query(partition.token, start_ns, end_ns if proof is Proof.OK else None)
        # Not the epoch's start: a child that was announced late is read from an earlier one.
        cut = Cut(watermark_for_start(start_ns), end_ns)
        consumer = CutFilter(partition.token, cut, audit)
        with self._running(partition, query):
            query.run(decoder, consumer)
        return consumer.announced


def _require_end_before(
    start_ns: int, partition: Partition, announced: list[ChildPartitionsRecord]
) -> None:
    """Check that a partition whose start was refused has really ended before it.

    The look back takes no data change records. If the partition ended later, those between the
    start and its end would be lost.

    Raises:
        UnavailableError: the partition ended after the start; the epoch is to be read again.
    """
    if any(record.start_timestamp_ns > start_ns for record in announced):
        raise UnavailableError(
            f"Spanner refused to read partition {partition.token} at {format_rfc3339(start_ns)},"
            " although the partition ended later.",
            "Nothing was skipped: the epoch is read again",
        )
