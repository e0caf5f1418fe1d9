"""One partition query, opened again as often as it breaks: each record comes once.

A query that breaks or stalls (reader.query.stall_watchdog) is opened again at the last
commit_timestamp seen. Records at that timestamp that were handed on before are dropped, because
Spark can't give them back. Resume tokens are not used: the emulator ignores them, and a timestamp
works everywhere.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.errors import (
    NotFoundError,
    ReaderError,
    StreamAlteredError,
    UnavailableError,
)
from slackwater.reader.query.batch_decoder import (
    PORTION_BYTES,
    BatchDecoder,
    QueryStream,
    RecordConsumer,
)
from slackwater.reader.query.delivery_tracker import DeliveryTracker, TrackedConsumer
from slackwater.reader.query.reopened_query import ATTEMPTS_MAX, ReopenedQuery
from slackwater.reader.query_outcome import end_of
from slackwater.reader.query_window import query_end_ns
from slackwater.reader.records import ChangeRecord, HeartbeatRecord
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.grpc_errors import (
    CALL_ERRORS,
    code_of,
    is_retryable,
    to_reader_error,
)
from slackwater.reader.transport.statement import partition_query


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """The records that one message completed."""

    records: Sequence[ChangeRecord]


class PartitionQuery(ReopenedQuery):
    """The change records of one partition token over [start, end], in commit order.

    Iteration ends when Spanner has ended the query with status OK. Its meaning is explained in
    reader.query_outcome: an inconclusive query, without an end_timestamp and without child
    partitions records, is opened again. Each record comes once, however often the query
    breaks.

    With mutable key ranges a long time is read by several queries, each up to the end that
    reader.query_window gives it. Iteration ends after the last one, or with the partition's end
    record. Without an end_timestamp it ends only with that, and each query's end is shown as a
    heartbeat.

    Attributes:
        queried_source: True, as slackwater.scheduler.change_source.Query explains.

    Raises while iterating:
        StartOutsidePartitionError: the partition ended before the start.
        ReaderError: Spanner's answer; a retryable one after a minute without progress.
    """

    queried_source: Final = True

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        *,
        partition_token: str | None,
        start_timestamp_ns: int,
        end_timestamp_ns: int | None,
        heartbeat_ms: int,
        mode: PartitionMode = PartitionMode.IMMUTABLE_KEY_RANGE,
        function: str = "",
    ) -> None:
        super().__init__(partition_token, heartbeat_ms)
        self._connection = connection
        self._dialect = dialect
        self._token = partition_token
        self._end_ns = end_timestamp_ns
        self._mode = mode
        self._function = function
        # The end of the running query, which may be only one of several.
        self._query_end_ns = end_timestamp_ns
        # When it was opened, by this machine's clock.
        self._asked_ns = 0
        self._tracker = DeliveryTracker(partition_token, start_timestamp_ns)
        self._progress = self._tracker.progress

    def __iter__(self) -> Iterator[DecodedMessage]:
        """Iterate over the query's messages; see the class."""
        decoder = ChangeRecordDecoder(self._mode)
        for portion in self._all_portions(decoder.reset, lambda: None, decoder.finish):
            if not portion:
                # The end of a query means the same as a heartbeat at that time.
                yield DecodedMessage((HeartbeatRecord(self.watermark_ns),))
            for serialized in portion:
                records = self._tracker.new_records(decoder.feed(serialized))
                if records:
                    yield DecodedMessage(records)
        decoder.finish()

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        """Read to the end, and decode together with other queries (reader.query.batch_decoder).

        The last messages may still have to be decoded then: see BatchDecoder.when_decoded().

        A query without an end_timestamp decodes its messages itself, because its consumer may be
        done at any record.

        Args:
            decoder: shared with other queries.
            consumer: receives the records.

        Raises:
            StartOutsidePartitionError, ReaderError: see the class.
        """
        if self._end_ns is None:
            for message in self:
                decoder.add_records(consumer, message.records)
                if consumer.is_done:
                    self.cancel()
                    return
            return
        stream = QueryStream(
            TrackedConsumer(self._tracker, consumer), ChangeRecordDecoder(self._mode)
        )
        for portion in self._all_portions(stream.reset, decoder.flush, stream.decoder.finish):
            if portion:
                decoder.add(stream, portion)
        decoder.when_decoded(stream.decoder.finish)

    def _all_portions(
        self, reset: Callable[[], None], flush: Callable[[], None], finish: Callable[[], None]
    ) -> Iterator[list[bytes]]:
        """Yield the query's messages in portions, opening it again as often as necessary.

        An empty portion is the end of one of several queries that follow each other.

        Args:
            reset: called each time before the query is opened.
            flush: called when the progress must include all messages so far.
            finish: called after flush when the query has ended with OK, but not at the last end.
        """
        failures = 0
        while True:
            before = self._progress.reopen_ns
            try:
                reset()
                yield from self._portions_once()
                if self._end_ns is not None and self._query_end_ns == self._end_ns:
                    # It has reached its end, whatever the last messages hold.
                    return
                flush()
                finish()
            except CALL_ERRORS as error:
                flush()
                has_moved = self._progress.reopen_ns > before
                failures = 1 if has_moved else failures + 1
                is_stall = self._count_stall(has_moved=has_moved)
                self._give_up_or_wait(error, failures, is_worth_retrying=is_stall)
            else:
                if end_of(self._tracker.ending_records) is not None:
                    return
                if self._has_shown_all(self._query_end_ns):
                    self._progress.advance_past(self._query_end_ns)
                    failures = 0
                    yield []
                    continue
                failures = 1 if self._progress.reopen_ns > before else failures + 1
                self._give_up_or_reopen(failures)

    def _has_shown_all(self, query_end_ns: int | None) -> TypeGuard[int]:
        """Return True if a query that ended with OK has shown everything up to its end.

        It has if it read the past. One whose end lies ahead may end too soon, with records that it
        has not sent (apache/beam issues 39821 and 40232).
        """
        if query_end_ns is None:
            return False
        return self._end_ns is not None or query_end_ns < self._asked_ns

    @property
    def watermark_ns(self) -> int:
        """The time up to which all records of the partition have come, nanoseconds."""
        return self._progress.watermark_ns

    def _portions_once(self) -> Iterator[list[bytes]]:
        start_ns = self._progress.reopen_ns
        if self._mode is PartitionMode.MUTABLE_KEY_RANGE:
            self._query_end_ns = query_end_ns(start_ns, self._end_ns)
        self._asked_ns = time.time_ns()
        call = self._connection.stream(
            partition_query(
                self._dialect,
                self._connection.change_stream.change_stream,
                start_timestamp_ns=start_ns,
                end_timestamp_ns=self._query_end_ns,
                partition_token=self._token,
                heartbeat_ms=self._heartbeat_ms,
                mode=self._mode,
                function=self._function,
            )
        )
        with self._running(call):
            # A query with an end_timestamp reads the past, so its next message comes soon.
            bytes_max = 0 if self._end_ns is None else PORTION_BYTES
            yield from call.portions(bytes_max)

    def _give_up_or_wait(
        self, error: BaseException, failures: int, *, is_worth_retrying: bool
    ) -> None:
        if self._cancelled.is_set():
            raise QueryCancelledError(f"the query of partition {self._token} was cancelled.")
        self._connection.forget_session_if_lost(error)
        is_worth_retrying = is_worth_retrying or is_retryable(error)
        if not is_worth_retrying or self._connection.is_closed or failures >= ATTEMPTS_MAX:
            raise self._reader_error(error) from error
        self._reopen(code_of(error).name, failures)

    def _reader_error(self, error: BaseException) -> ReaderError:
        """Return the error to raise for a failed call."""
        refusal = to_reader_error(error, self._connection.change_stream)
        if self._function and isinstance(refusal, NotFoundError):
            # The stream may still be there: the next plan finds out which functions it has.
            return StreamAlteredError(
                f"the read function for placement {self._function} is gone. {refusal.message}",
                "The epoch is planned again with the functions that the stream has now",
            )
        return refusal

    def _give_up_or_reopen(self, failures: int) -> None:
        if self._cancelled.is_set():
            raise QueryCancelledError(f"the query of partition {self._token} was cancelled.")
        if failures >= ATTEMPTS_MAX:
            raise UnavailableError(
                f"the query of partition {self._token} ended {failures} times with OK, without the"
                " partition's end and without a new record.",
                "Try again later",
            )
        self._reopen("OK", failures)

    def _reopen(self, code: str, failures: int) -> None:
        self._tracker.was_reopened = True
        self._wait(code, failures)


class QueryCancelledError(ReaderError):
    """The query was cancelled by its owner: this is not a fault."""
