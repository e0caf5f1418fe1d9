"""One partition query: its records, with retries, once each.

A query that breaks or stalls (reader.stall) is opened again at the last commit_timestamp seen, and
the records that were already handed on at that timestamp are dropped: what was given to Spark can't
be taken back. Resume tokens are not used: the emulator ignores them, and a timestamp serves
everywhere.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from tenacity import RetryCallState, wait_random_exponential

from reader.change_stream import Dialect
from reader.connection import Call, Connection
from reader.decode import ChangeRecordDecoder
from reader.ending import Premature, conclude
from reader.errors import DecodeError, ReaderError, UnavailableError
from reader.records import ChangeRecord, ChildPartitionsRecord
from reader.stall import WATCH, patience_s
from reader.statement import partition_query
from reader.status import CALL_ERRORS, is_retryable, to_reader_error
from reader.timestamp import format_rfc3339
from reader.watermark import PartitionProgress

_log = logging.getLogger(__name__)

# Attempts in a row without one new record; with the waits below, about a minute.
_ATTEMPTS_MAX: Final = 15
_WAIT = wait_random_exponential(multiplier=0.05, max=8)


@dataclass(frozen=True, slots=True)
class Message:
    """The records that one message completed, and its size on the wire in bytes."""

    records: Sequence[ChangeRecord]
    size_bytes: int


class PartitionQuery:
    """The change records of one partition token over [start, end], in commit order.

    Iterating ends when Spanner ended the query with status OK; what that shows is for
    reader.ending.conclude to say. A query without an end_timestamp that ended without child
    partitions records shows nothing, and is opened again. Each record comes once, however often
    the query broke.

    Raises while iterating:
        StartOutsidePartitionError: the partition ended before the start.
        ReaderError: any other answer of Spanner, retryable ones after a minute without progress.
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
        # Since when Spanner, and not whoever takes the messages, is waited for.
        self._waiting_since_s: float | None = None
        self._stalls_in_a_row = 0
        self._announced: list[ChildPartitionsRecord] = []
        self._is_stalled = False
        self.retries = 0
        self.stalls = 0

    def __iter__(self) -> Iterator[Message]:
        """The query's messages; see the class."""
        failures = 0
        while True:
            before = self._progress.reopen_ns
            try:
                yield from self._once()
            except CALL_ERRORS as error:
                has_moved = self._progress.reopen_ns > before
                failures = 1 if has_moved else failures + 1
                is_stall = self._note_stall(has_moved=has_moved)
                self._give_up_or_wait(error, failures, is_worth_retrying=is_stall)
            else:
                if not isinstance(conclude(self._announced, self._end_ns), Premature):
                    return
                failures = 1 if self._progress.reopen_ns > before else failures + 1
                self._again_or_give_up(failures)

    def cancel(self) -> None:
        """End the query from another thread; its iterator stops with an error."""
        self._cancelled.set()
        call = self._call
        if call is not None:
            call.cancel()

    @property
    def watermark_ns(self) -> int:
        """The partition is complete through this time, as far as its records have come."""
        return self._progress.watermark_ns

    @property
    def open_ms(self) -> int:
        """Since the query was made, milliseconds."""
        return round((time.monotonic() - self._opened_s) * 1_000)

    @property
    def silent_ms(self) -> int:
        """How long Spanner has been waited for, milliseconds; 0 while its messages are used."""
        since_s = self._waiting_since_s
        return 0 if since_s is None else round((time.monotonic() - since_s) * 1_000)

    def end_if_stalled(self, now_s: float) -> None:
        """See reader.stall.Watched; the query is then opened again."""
        since_s, call = self._waiting_since_s, self._call
        if since_s is None or call is None or self._is_stalled:
            return
        if now_s - since_s >= patience_s(self._heartbeat_ms, self._stalls_in_a_row):
            self._is_stalled = True
            call.cancel()

    def _once(self) -> Iterator[Message]:
        decoder = ChangeRecordDecoder()
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
        reopened = self.retries > 0
        WATCH.add(self)
        try:
            if self._cancelled.is_set():
                # cancel() came before there was a call to cancel.
                call.cancel()
            for message in self._waited_for(call):
                records: Sequence[ChangeRecord] = decoder.feed(message)
                if reopened:
                    records = self._progress.fresh(records)
                if records:
                    self._advance(records)
                    self._announced += [r for r in records if isinstance(r, ChildPartitionsRecord)]
                    yield Message(records, len(message))
            decoder.finish()
        finally:
            WATCH.remove(self)
            call.cancel()

    def _waited_for(self, call: Call) -> Iterator[bytes]:
        messages = iter(call)
        while True:
            self._waiting_since_s = time.monotonic()
            try:
                message = next(messages)
            except StopIteration:
                return
            finally:
                self._waiting_since_s = None
            yield message

    def _note_stall(self, *, has_moved: bool) -> bool:
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

    def _advance(self, records: Sequence[ChangeRecord]) -> None:
        try:
            self._progress.advance(records)
        except ValueError as error:
            raise DecodeError(f"partition {self._token}: {error}") from error

    def _give_up_or_wait(
        self, error: BaseException, failures: int, *, is_worth_retrying: bool
    ) -> None:
        if self._cancelled.is_set():
            raise QueryCancelledError(f"the query of partition {self._token} was cancelled.")
        self._connection.forget_session_if_lost(error)
        is_worth_retrying = is_worth_retrying or is_retryable(error)
        if not is_worth_retrying or failures >= _ATTEMPTS_MAX:
            raise to_reader_error(error, self._connection.change_stream) from error
        self._wait(failures)

    def _again_or_give_up(self, failures: int) -> None:
        if self._cancelled.is_set():
            raise QueryCancelledError(f"the query of partition {self._token} was cancelled.")
        if failures >= _ATTEMPTS_MAX:
            raise UnavailableError(
                f"the query of partition {self._token} ended {failures} times with OK and showed"
                " neither the partition's end nor anything new.",
                "Try again later",
            )
        self._wait(failures)

    def _wait(self, failures: int) -> None:
        self.retries += 1
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = failures
        # Waiting on the event lets cancel() end the wait.
        self._cancelled.wait(_WAIT(state))


class QueryCancelledError(ReaderError):
    """The query was cancelled by its owner; nobody is at fault."""
