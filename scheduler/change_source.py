"""The protocol of a source of change records: Spanner, or a simulation.

The scheduler asks it for the time, for the partitions alive at a time, for the earliest time that
can still be read, and for the records of one partition. scheduler.spanner_source has Spanner's
implementation; tests/simulation has another.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer
from slackwater.state.models import Partition


class Query(Protocol):
    """A running partition query."""

    @property
    def watermark_ns(self) -> int:
        """The time through which the partition is complete."""

    @property
    def open_ms(self) -> int:
        """The time since it was opened."""

    @property
    def silent_ms(self) -> int:
        """The time since the source's last message."""

    @property
    def retried(self) -> Mapping[str, int]:
        """The number of times that it was opened again, by gRPC's status code."""

    @property
    def stalls(self) -> int:
        """The number of times that it stalled."""

    @property
    def queried_source(self) -> bool:
        """False if the records came from a reader process, and the source was not queried."""

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        """Read until the source ends the query with OK, or the consumer has enough.

        The consumer has all records when the decoder has decoded all messages.

        Raises:
            StartOutsidePartitionError: the partition ended before the start.
            ReaderError: the query failed for good.
        """

    def cancel(self) -> None:
        """End it early, from another thread."""


class PartitionQueries(Protocol):
    """The part of a source that tasks need."""

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        """Return a query of a partition's records.

        Args:
            token: the partition token.
            start_ns: the first commit timestamp, inclusive.
            end_ns: the last one, inclusive; None for the end of the partition.
            function: as in PartitionKey.
        """

    def require_same_functions(self) -> None:
        """Check that the stream still has the read functions with which the epoch was planned.

        A task asks when the epoch's end has passed, so the answer holds for the whole epoch.

        Raises:
            StreamAlteredError: it has others.
            ReaderError: the source does not answer.
        """


class ReadableSource(Protocol):
    """The part of any source that planning needs: its clock, and its partitions at a time."""

    def check(self) -> None:
        """Check that the source exists and can be read; a new pipeline starts with it.

        Raises:
            NotFoundError: there is no such source.
            UnsupportedStreamError: it is of a kind that is not read yet.
            ReaderError: the source does not answer.
        """

    def strong_read_timestamp_ns(self) -> int:
        """Read the source's clock: everything committed at or before it is visible.

        Raises:
            ReaderError: the source does not answer.
        """

    def partitions_alive(self, at_ns: int) -> Sequence[object]:
        """Return the partitions from which all records after a time can be read.

        Raises:
            StartTooOldError: the time lies before the retention or the stream's creation.
            StartInFutureError: it lies after the source's clock.
            ReaderError: the source does not answer.
        """

    def earliest_start_ns(self) -> int:
        """Return the earliest time from which a new pipeline can read all records.

        A pipeline that starts there has some time for its first queries before the records expire.

        Raises:
            ReaderError: the source does not answer.
        """


class ChangeSource(PartitionQueries, ReadableSource, Protocol):
    """All that planning needs of a source of change records with a lineage of partitions."""

    @property
    def partition_mode(self) -> PartitionMode:
        """The way in which its partitions follow the keys."""

    @property
    def read_functions(self) -> Sequence[str]:
        """The read functions whose records together are the stream's, as in PartitionKey."""

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        """Return the partitions alive at a time, as partitions that start there.

        A read function that did not exist then has those that it began with.

        Args:
            at_ns: the time.
            functions: only the partitions of these read functions; None for all.

        Raises:
            StartTooOldError, StartInFutureError, ReaderError: see ReadableSource.
        """
