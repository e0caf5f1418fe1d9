"""One partition query, opened again as often as it breaks: each record comes once.

A query that breaks or stalls (reader.query.stall_watchdog) is opened again at the last
commit_timestamp seen. Records at that timestamp that were handed on before are dropped, because
Spark can't give them back. Resume tokens are not used: the emulator ignores them, and a timestamp
works everywhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa
from tenacity import RetryCallState, wait_random_exponential

from slackwater.reader.change_stream import Dialect
from slackwater.reader.decode.protobuf_cursor import Flags
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.errors import DecodeError, ReaderError, UnavailableError
from slackwater.reader.partition_progress import PartitionProgress
from slackwater.reader.query.batch_decoder import (
    PORTION_BYTES,
    BatchDecoder,
    QueryStream,
    RecordConsumer,
    Rows,
)
from slackwater.reader.query.receive_turns import ALREADY_THERE_S, RECEIVE_LOCK, ReceiveTurn
from slackwater.reader.query.stall_watchdog import WATCHDOG, silence_max_s
from slackwater.reader.query_outcome import Inconclusive, outcome_of
from slackwater.reader.records import ChangeRecord, ChildPartitionsRecord, DataChangeRecord
from slackwater.reader.transport.connection import Call, Connection
from slackwater.reader.transport.fast_stream import fast_messages
from slackwater.reader.transport.grpc_errors import (
    CALL_ERRORS,
    code_of,
    is_retryable,
    to_reader_error,
)
from slackwater.reader.transport.statement import partition_query
from slackwater.timestamp import format_rfc3339, ns_to_us, seconds_to_ms, us_to_ns

_log = logging.getLogger(__name__)

# Attempts in a row without a new record: about a minute, with the waits below.
_ATTEMPTS_MAX: Final = 15
_WAIT = wait_random_exponential(multiplier=0.05, max=8)


@dataclass(frozen=True, slots=True)
class DecodedMessage:
    """The records that one message completed."""

    records: Sequence[ChangeRecord]


class PartitionQuery:
    """The change records of one partition token over [start, end], in commit order.

    Iteration ends when Spanner has ended the query with status OK. What that means is decided by
    reader.query_outcome.outcome_of: an inconclusive query, without an end_timestamp and without
    child partitions records, is opened again. Each record comes once, however often the query
    breaks.

    Attributes:
        retries: how often the query was opened again.
        retried: how often for each gRPC status code, by its name.
        stalls: how often it stalled.

    Raises while iterating:
        StartOutsidePartitionError: the partition ended before the start.
        ReaderError: Spanner's answer; a retryable one after a minute without progress.
    """

    def __init__(
        self,
        connection: Connection,
        dialect: Dialect,
        *,
        partition_token: str | None,
        start_timestamp_ns: int,
        end_timestamp_ns: int | None,
        heartbeat_ms: int,
    ) -> None:
        self._connection = connection
        self._dialect = dialect
        self._token = partition_token
        self._end_ns = end_timestamp_ns
        self._heartbeat_ms = heartbeat_ms
        self._progress = PartitionProgress(start_timestamp_ns)
        self._call: Call | None = None
        self._cancelled = threading.Event()
        self._opened_s = time.monotonic()
        # Since when this query waits for Spanner, and not for the consumer of its messages.
        self._waiting_since_s: float | None = None
        self._stalls_in_a_row = 0
        self._child_records: list[ChildPartitionsRecord] = []
        self._is_stalled = False
        self.retries = 0
        self.retried: Counter[str] = Counter()
        self.stalls = 0

    def __iter__(self) -> Iterator[DecodedMessage]:
        """Iterate over the query's messages; see the class."""
        decoder = ChangeRecordDecoder()
        for portion in self._all_portions(decoder.reset, lambda: None, decoder.finish):
            for serialized in portion:
                records = self._new_records(decoder.feed(serialized))
                if records:
                    self._track_records(records)
                    yield DecodedMessage(records)

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        """Read to the end, and decode together with other queries (reader.query.batch_decoder).

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
        stream = QueryStream(_TrackedConsumer(self, consumer))
        for portion in self._all_portions(stream.reset, decoder.flush, stream.decoder.finish):
            decoder.add(stream, portion)

    def _all_portions(
        self, reset: Callable[[], None], flush: Callable[[], None], finish: Callable[[], None]
    ) -> Iterator[list[bytes]]:
        """Yield the query's messages in portions, opening it again as often as necessary.

        Args:
            reset: called each time before the query is opened.
            flush: called when the progress must include all messages so far.
            finish: called when the query has ended with OK, after flush.
        """
        failures = 0
        while True:
            before = self._progress.reopen_ns
            try:
                reset()
                yield from self._portions_once()
                flush()
                finish()
            except CALL_ERRORS as error:
                flush()
                has_moved = self._progress.reopen_ns > before
                failures = 1 if has_moved else failures + 1
                is_stall = self._count_stall(has_moved=has_moved)
                self._give_up_or_wait(error, failures, is_worth_retrying=is_stall)
            else:
                if not isinstance(outcome_of(self._child_records, self._end_ns), Inconclusive):
                    return
                failures = 1 if self._progress.reopen_ns > before else failures + 1
                self._give_up_or_reopen(failures)

    def cancel(self) -> None:
        """End the query, from another thread; its iterator then raises an error."""
        self._cancelled.set()
        call = self._call
        if call is not None:
            call.cancel()

    @property
    def watermark_ns(self) -> int:
        """The time up to which all records of the partition have come, nanoseconds."""
        return self._progress.watermark_ns

    @property
    def open_ms(self) -> int:
        """The time since the query was made, milliseconds."""
        return seconds_to_ms(time.monotonic() - self._opened_s)

    @property
    def silent_ms(self) -> int:
        """The time for which Spanner has been silent, milliseconds; 0 while messages are used."""
        since_s = self._waiting_since_s
        return 0 if since_s is None else seconds_to_ms(time.monotonic() - since_s)

    def cancel_if_stalled(self, now_s: float) -> None:
        """Cancel the running call if Spanner has been silent too long; it is then opened again."""
        since_s, call = self._waiting_since_s, self._call
        if since_s is None or call is None or self._is_stalled:
            return
        if now_s - since_s >= silence_max_s(self._heartbeat_ms, self._stalls_in_a_row):
            self._is_stalled = True
            call.cancel()

    def _portions_once(self) -> Iterator[list[bytes]]:
        self._call = call = self._connection.stream(
            partition_query(
                self._dialect,
                self._connection.change_stream.change_stream,
                start_timestamp_ns=self._progress.reopen_ns,
                end_timestamp_ns=self._end_ns,
                partition_token=self._token,
                heartbeat_ms=self._heartbeat_ms,
            )
        )
        WATCHDOG.add(self)
        try:
            if self._cancelled.is_set():
                # cancel() was called before there was a call to cancel.
                call.cancel()
            yield from self._call_portions(call)
        finally:
            WATCHDOG.remove(self)
            call.cancel()

    def _call_portions(self, call: Call) -> Iterator[list[bytes]]:
        """Yield the messages of a running query, as many together as have already arrived.

        A query with an end_timestamp reads the past, so its next message comes soon. Without one,
        each message is yielded alone.
        """
        portion: list[bytes] = []
        room = enough = 0 if self._end_ns is None else PORTION_BYTES
        turn = ReceiveTurn()
        messages = fast_messages(call)
        try:
            now_s = time.monotonic()
            while True:
                self._waiting_since_s = since_s = now_s
                message = next(messages, None)
                if message is None:
                    break
                portion.append(message)
                room -= len(message)
                now_s = time.monotonic()
                if now_s - since_s > ALREADY_THERE_S:
                    turn.release()
                elif turn.is_held:
                    RECEIVE_LOCK.last_received_s = now_s
                else:
                    self._waiting_since_s = None
                    if turn.acquire(now_s):
                        now_s = time.monotonic()
                if room <= 0:
                    self._waiting_since_s = None
                    yield portion
                    turn.charge(enough - room)
                    portion, room = [], enough
                    now_s = time.monotonic()
        except CALL_ERRORS:
            self._waiting_since_s = None
            turn.release()
            if portion:
                yield portion
            raise
        finally:
            self._waiting_since_s = None
            turn.release()
        if portion:
            yield portion

    def _count_stall(self, *, has_moved: bool) -> bool:
        if not self._is_stalled:
            return False
        self._is_stalled = False
        self.stalls += 1
        self._stalls_in_a_row = 1 if has_moved else self._stalls_in_a_row + 1
        _log.warning(
            "partition %s stalled: neither a record nor a heartbeat after %s; its query is opened"
            " again",
            self._token,
            format_rfc3339(self._progress.reopen_ns),
        )
        return True

    def _new_records(self, records: Sequence[ChangeRecord]) -> Sequence[ChangeRecord]:
        """Return the records that were not handed on before the query was opened again."""
        return self._progress.drop_duplicates(records) if self.retries else records

    def _new_rows(self, rows: Rows) -> Flags | None:
        """Return which rows were not handed on before; None for all."""
        at_reopening = rows.commit_us == ns_to_us(self._progress.reopen_ns)
        if not self.retries or not at_reopening.any():
            return None
        is_new = np.ones(len(rows.commit_us), np.bool_)
        for index in np.flatnonzero(at_reopening):
            (key,) = _keys(rows, int(index), int(index) + 1)
            is_new[index] = not self._progress.was_handed_on(key)
        return is_new

    def _track_records(self, records: Sequence[ChangeRecord]) -> None:
        try:
            self._progress.advance(records)
        except ValueError as error:
            raise DecodeError(f"partition {self._token}: {error}") from error
        self._child_records += [r for r in records if isinstance(r, ChildPartitionsRecord)]

    def _track_rows(self, rows: Rows) -> None:
        times = rows.commit_us
        first_ns, last_ns = us_to_ns(int(times[0])), us_to_ns(int(times[-1]))
        if first_ns < self._progress.reopen_ns or (times[1:] < times[:-1]).any():
            raise DecodeError(f"partition {self._token}: records came out of commit order")
        begin = int(np.searchsorted(times, times[-1]))
        self._progress.advance_to(last_ns, _keys(rows, begin, len(times)))

    def _give_up_or_wait(
        self, error: BaseException, failures: int, *, is_worth_retrying: bool
    ) -> None:
        if self._cancelled.is_set():
            raise QueryCancelledError(f"the query of partition {self._token} was cancelled.")
        self._connection.forget_session_if_lost(error)
        is_worth_retrying = is_worth_retrying or is_retryable(error)
        if not is_worth_retrying or self._connection.is_closed or failures >= _ATTEMPTS_MAX:
            raise to_reader_error(error, self._connection.change_stream) from error
        self.retried[code_of(error).name] += 1
        self._wait(failures)

    def _give_up_or_reopen(self, failures: int) -> None:
        if self._cancelled.is_set():
            raise QueryCancelledError(f"the query of partition {self._token} was cancelled.")
        if failures >= _ATTEMPTS_MAX:
            raise UnavailableError(
                f"the query of partition {self._token} ended {failures} times with OK, without the"
                " partition's end and without a new record.",
                "Try again later",
            )
        self.retried["OK"] += 1
        self._wait(failures)

    def _wait(self, failures: int) -> None:
        self.retries += 1
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = failures
        # Waiting on the event lets cancel() end the wait.
        self._cancelled.wait(_WAIT(state))


def _keys(rows: Rows, begin: int, end: int) -> list[tuple[str, str]]:
    """Return server_transaction_id and record_sequence of the rows [begin, end)."""
    columns = (rows.batch.column(name) for name in ("server_transaction_id", "record_sequence"))
    return list(zip(*(c.slice(begin, end - begin).to_pylist() for c in columns), strict=True))


class _TrackedConsumer:
    """A consumer that advances the query's progress before it hands records on."""

    def __init__(self, query: PartitionQuery, consumer: RecordConsumer) -> None:
        self._query = query
        self._consumer = consumer
        self.token = consumer.token

    @property
    def is_done(self) -> bool:
        return self._consumer.is_done

    def take_rows(self, rows: Rows) -> Flags | None:
        is_new = self._query._new_rows(rows)
        if is_new is not None:
            rows = Rows(rows.batch.filter(pa.array(is_new)), rows.commit_us[is_new])
            if not len(rows.commit_us):
                return is_new
        self._query._track_rows(rows)
        wanted = self._consumer.take_rows(rows)
        if is_new is None or wanted is None:
            return wanted if is_new is None else is_new
        is_new[is_new] = wanted
        return is_new

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        records = self._query._new_records(records)
        self._query._track_records(records)
        return self._consumer.take_records(records)


class QueryCancelledError(ReaderError):
    """The query was cancelled by its owner: this is not a fault."""
