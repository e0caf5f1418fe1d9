"""Reading one partition in an epoch: to its end or through the low watermark, and how it is shown.

Plain code for one thread, without a store: it says how the reading ended, and who called it writes
that down.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Final

from slackwater.reader.errors import StartOutsidePartitionError, UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder
from slackwater.reader.query_outcome import QueryOutcome, outcome_of
from slackwater.reader.records import ChildPartitionsRecord
from slackwater.scheduler.audit import PartitionAudit
from slackwater.scheduler.change_source import PartitionQueries, Query
from slackwater.scheduler.epoch import Cut, watermark_for_start
from slackwater.scheduler.read_options import Proof
from slackwater.scheduler.tasks.cut_filter import CutFilter
from slackwater.state.models import Partition, Plan
from slackwater.timestamp import NANOSECONDS_PER_SECOND, format_rfc3339

_log = logging.getLogger(__name__)

_STEP_BACK_FIRST_NS: Final = NANOSECONDS_PER_SECOND
_STEPS_BACK_MAX: Final = 15
_STEP_PAUSE_S: Final = 0.2


Running = Callable[[Partition, Query], AbstractContextManager[None]]


class PartitionReader:
    """Reads partitions of one plan.

    Args:
        plan: the epoch's.
        source: where the records come from.
        proof: what shows that a partition was read through.
        running: entered for the time of each query, so that it can be seen and cancelled.
        pause: waits for some seconds.
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
                self._pause(_STEP_PAUSE_S)
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
        query = self._source.query(
            partition.token, start_ns, end_ns if self._proof is Proof.OK else None
        )
        # The query's own start: a child that comes late is read from before the epoch's.
        cut = Cut(watermark_for_start(start_ns), end_ns)
        consumer = CutFilter(partition.token, cut, audit)
        with self._running(partition, query):
            query.run(decoder, consumer)
        return consumer.announced
