"""The reading of one partition in an epoch: to the partition's end, or through the epoch's.

It runs in the caller's thread and uses no store: it returns facts, and the caller records them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Final

from slackwater.reader.errors import StartOutsidePartitionError, UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder
from slackwater.reader.query_outcome import end_of
from slackwater.reader.records import PartitionEventRecord, PartitionRecord
from slackwater.scheduler.audit import PartitionAudit
from slackwater.scheduler.change_source import PartitionQueries, Query
from slackwater.scheduler.epoch import cut_of
from slackwater.scheduler.lineage import announced, delivered_cut, is_read_from_start
from slackwater.scheduler.read_options import Proof
from slackwater.scheduler.tasks.cut_filter import CutFilter
from slackwater.state.models import Partition, Plan
from slackwater.timestamp import NANOSECONDS_PER_SECOND, format_rfc3339

_log = logging.getLogger(__name__)

Running = Callable[[Partition, Query], AbstractContextManager[None]]

_FIRST_STEP_NS: Final = NANOSECONDS_PER_SECOND
_STEP_FACTOR: Final = 4
_STEPS_MAX: Final = 15
_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The facts about partitions that an epoch's queries showed: an end, announcements, or both.

    Attributes:
        end_timestamp_ns: the end of the partition; None if it was read through the epoch.
        announced: the partitions that it announced, also those that are recorded already.
    """

    end_timestamp_ns: int | None
    announced: tuple[Partition, ...]


class PartitionReader:
    """A reader of the partitions of one plan.

    Args:
        plan: the epoch's plan.
        source: opens partition queries.
        proof: the evidence that a partition was read through the epoch's end.
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
        self,
        partition: Partition,
        start_ns: int,
        decoder: BatchDecoder,
        audit: PartitionAudit,
        then: Callable[[PartitionFacts], None],
    ) -> None:
        """Read a partition from start_ns to its end or the epoch's.

        Args:
            partition: the partition to read.
            start_ns: as lineage.query_start_ns() returns it.
            decoder: takes the data change records.
            audit: takes every record that is delivered, and the partition's event records.
            then: takes the facts shown, when the decoder has decoded all of them.

        Raises:
            ReaderError: a query failed.
        """
        has_ended = (
            partition.end_timestamp_ns is not None
            and partition.end_timestamp_ns <= self._plan.end_ns
        )
        try:
            records = self._query(partition, start_ns, decoder, audit, self._proof)
        except StartOutsidePartitionError:
            records = self._recover(partition, start_ns, decoder)
            self._require_delivered(partition, start_ns, end_of(records))
        else:
            if has_ended:
                decoder.flush()
                if end_of(records) is None:
                    records += self._recover(partition, start_ns, decoder)
        decoder.when_decoded(lambda: then(self._facts(partition, records, audit)))

    def _facts(
        self, partition: Partition, records: Sequence[PartitionRecord], audit: PartitionAudit
    ) -> PartitionFacts:
        audit.add_events(r for r in records if isinstance(r, PartitionEventRecord))
        audit.end()
        return PartitionFacts(end_of(records), announced(records, partition.function))

    def _look_back(
        self, partition: Partition, start_ns: int, decoder: BatchDecoder
    ) -> list[PartitionRecord] | None:
        """Return the records that a query from an earlier start shows, further back each time.

        A query whose end_timestamp is just after its partition's end may end without the records of
        that end (apache/beam issue 40232), and Spanner refuses later starts. A query that starts
        before the partition's end, and has no end_timestamp, returns them: it goes on to the
        partition's end.

        Returns:
            None if none of them shows the end.

        Raises:
            ReaderError: a query failed; StartOutsidePartitionError only for the partition's own
                start.
        """
        first_ns, step_ns = partition.start_timestamp_ns, _FIRST_STEP_NS
        for _ in range(_STEPS_MAX):
            earlier_ns = max(first_ns, start_ns - step_ns)
            try:
                records = self._query(partition, earlier_ns, decoder, None, Proof.RECORD)
                decoder.flush()
            except StartOutsidePartitionError:
                if earlier_ns == first_ns:
                    raise
            else:
                if end_of(records) is not None:
                    return records
            if earlier_ns == first_ns:
                # There is no earlier start to try; the answer may differ in a moment.
                self._pause(_PAUSE_S)
            step_ns *= _STEP_FACTOR
        return None

    def _recover(
        self, partition: Partition, start_ns: int, decoder: BatchDecoder
    ) -> list[PartitionRecord]:
        """Return the records of a partition whose end no query has shown, without its data.

        Its data change records were delivered already.
        """
        records = self._look_back(partition, start_ns, decoder)
        if records is not None:
            _log.warning(
                "partition %s ended before %s, and no query had shown it; records of the"
                " partitions that it announced up to that time are delivered late",
                partition.label,
                format_rfc3339(start_ns),
            )
            return records
        raise UnavailableError(
            f"partition {partition.label} ended before {format_rfc3339(start_ns)}, and Spanner"
            " does not show its end.",
            "Nothing was skipped: try again later",
        )

    def _query(
        self,
        partition: Partition,
        start_ns: int,
        decoder: BatchDecoder,
        audit: PartitionAudit | None,
        proof: Proof,
    ) -> list[PartitionRecord]:
        """Run one query, and return its records up to the epoch's end, without data.

        The list is complete when the decoder has decoded all messages. Data change records are
        delivered only if there is an audit.
        """
        end_ns = self._plan.end_ns
        query = self._source.query(
            partition.token, start_ns, end_ns if proof is Proof.OK else None, partition.function
        )
        consumer = CutFilter(partition.token, delivered_cut(partition, cut_of(self._plan)), audit)
        with self._running(partition, query):
            query.run(decoder, consumer)
        return consumer.partition_records

    def _require_delivered(self, partition: Partition, start_ns: int, end_ns: int | None) -> None:
        """Check that nothing is lost of a partition whose start was refused.

        The look back takes no data change records. They were delivered by earlier epochs if these
        have read the partition from its start, and it ended no later than they read it.

        Raises:
            UnavailableError: some were not; the epoch is to be read again.
        """
        is_read = is_read_from_start(partition, self._plan.start_ns)
        if not is_read or end_ns is None or end_ns > start_ns:
            raise UnavailableError(
                f"Spanner refused to read partition {partition.label} at"
                f" {format_rfc3339(start_ns)}, although not all of it has been read.",
                "Nothing was skipped: the epoch is read again",
            )
