"""One read of a partition, opened again as often as it breaks: each change comes once.

Each change and each heartbeat has a continuation token, so a read that breaks goes on behind the
last change that came whole. Where it ends is not decided by its end time alone: Bigtable may close
a stream early, or not at all while replication stands still. Any token is a position to go on from.
"""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import grpc

from slackwater.reader.bigtable.changes import Changes
from slackwater.reader.bigtable.positions import Closed, Position, Read
from slackwater.reader.bigtable.service import (
    BigtableService,
    ChangeMessage,
    is_retryable,
    row_range,
    to_reader_error,
)
from slackwater.reader.decode.protobuf_cursor import LEN, tag
from slackwater.reader.errors import ReaderError, UnavailableError
from slackwater.reader.query.reopened_query import ATTEMPTS_MAX, ReopenedQuery
from slackwater.reader.transport.grpc_errors import CALL_ERRORS, code_of
from slackwater.timestamp import ms_to_seconds

_log = logging.getLogger(__name__)

# The statuses of a stream that ended as it should: at its end time, or with its partition.
_ENDS: Final = (grpc.StatusCode.OK.value[0], grpc.StatusCode.OUT_OF_RANGE.value[0])
# Nobody reads on what is missing at the end, so replication has some time to go on.
_WAIT_AT_END_S: Final = 60.0
# How far this machine's clock may be ahead of Bigtable's, which refuses a start in its future.
_AHEAD_US: Final = 60_000_000
_PORTION_BYTES: Final = 1024 * 1024
# A message with a change begins so.
_DATA_CHANGE: Final = bytes([tag(1, LEN)])


@dataclass(frozen=True, slots=True)
class ReadOutcome:
    """The end of a read.

    Attributes:
        positions: where its keys are read on.
        is_stalled: the partition did not advance to the end of the read.
        is_closed: the partition was split or merged before; its keys are to be read on.
    """

    positions: tuple[Position, ...]
    is_stalled: bool
    is_closed: bool


class PartitionRead(ReopenedQuery):
    """A read of one partition up to a time.

    Args:
        service: Bigtable's API.
        read: the partition, and where it starts.
        end_us: the time through which changes are read, in microseconds.
        heartbeat_ms: the heartbeat interval asked of Bigtable.
        deliver: gets the changes, in commit order for each row key.
        is_last: the keys are not read on. The read ends when Bigtable's estimate has passed the
            end: some changes that were committed after it may have come by then.
    """

    def __init__(
        self,
        service: BigtableService,
        read: Read,
        end_us: int,
        heartbeat_ms: int,
        deliver: Callable[[Changes], None],
        *,
        is_last: bool = False,
    ) -> None:
        super().__init__(read.partition, heartbeat_ms)
        self._service = service
        self._read = read
        self._end_us = end_us
        self._deliver = deliver
        self._is_of_end = is_last
        # Of a change whose last message has not come.
        self._partial: list[bytes] = []
        # Its end could come before a token does.
        self._has_end = not (is_last or read.needs_token(end_us))
        self._token: str | None = None
        self._closed: Closed | None = None
        self._watermark_us = 0
        self._stands_still = False
        self._advanced_s = time.monotonic()

    def run(self) -> ReadOutcome:
        """Read to the end.

        Raises:
            ReaderError: Bigtable's answer; a retryable one after a minute without progress.
        """
        failures = 0
        while True:
            before = self._token
            error = self._failure()
            if error is None:
                break
            failures = 1 if self._token != before else failures + 1
            self._count_stall(has_moved=self._token != before)
            self._give_up_or_wait(error, failures)
        stands_at_us = (self._watermark_us or None) if self._stands_still else None
        return ReadOutcome(
            self._read.after(self._token, self._closed, self._end_us, stands_at_us),
            self._stands_still,
            is_closed=self._closed is not None and self._read.is_closed_by(self._closed),
        )

    @property
    def watermark_ns(self) -> int:
        """Bigtable's last estimate of the partition's low watermark, nanoseconds; 0 for none."""
        return self._watermark_us * 1_000

    def _failure(self) -> BaseException | None:
        """Open the read once; return why it has to be opened again, None at its end."""
        end_us = self._end_us if self._has_end else None
        self._partial = []
        # Behind a last change before the end, any message is too many.
        bytes_max = 0 if self._is_of_end else _PORTION_BYTES
        try:
            call = self._service.read(self._read, self._token, end_us, self._heartbeat_ms)
            with self._running(call):
                for portion in call.portions(bytes_max, _DATA_CHANGE):
                    if self._is_last(portion, call.last_s):
                        return None
        except (*CALL_ERRORS, UnavailableError) as error:
            return error
        return UnavailableError(
            f"Bigtable ended the stream of {self._read.partition} without closing it.",
            "Try again later",
        )

    def _is_last(self, messages: Sequence[bytes], last_s: float) -> bool:
        """Take messages, the last of which may be no change; return whether it ends the read.

        Args:
            messages: serialized.
            last_s: when the last change came, by the monotonic clock.
        """
        last = ChangeMessage.FromString(messages[-1])
        kind, began_s = last.WhichOneof("stream_record"), time.monotonic()
        self._take_changes(messages if kind == "data_change" else messages[:-1])
        # A delivery may wait. The partition does not stand still meanwhile.
        waited_s = time.monotonic() - began_s
        self._advanced_s = max(self._advanced_s, last_s) + waited_s
        match kind:
            case "data_change":
                is_whole = not self._partial
                return self._is_of_end and is_whole and self._watermark_us > self._end_us
            case "heartbeat":
                self._token = last.heartbeat.continuation_token.token
                watermark_us = last.heartbeat.estimated_low_watermark.ToMicroseconds()
                if watermark_us > self._watermark_us:
                    self._watermark_us, self._advanced_s = watermark_us, time.monotonic()
                return self._has_reached_end()
            case "close_stream":
                return self._is_end(last.close_stream)
        return False

    def _take_changes(self, messages: Sequence[bytes]) -> None:
        """Deliver the changes that are whole now, and go on from the last one."""
        whole = len(messages)
        while whole:
            change = ChangeMessage.FromString(messages[whole - 1]).data_change
            if change.done:
                break
            whole -= 1
        if whole:
            self._token = change.token
            watermark_us = change.estimated_low_watermark.ToMicroseconds()
            self._watermark_us = max(self._watermark_us, watermark_us)
            changes, self._partial = [*self._partial, *messages[:whole]], []
            self._deliver(Changes(self._read.label, changes, sum(map(len, changes))))
        self._partial += messages[whole:]

    def _has_reached_end(self) -> bool:
        """Return whether a heartbeat ends the read: it is at its end, or does not get there."""
        if self._watermark_us > self._end_us:
            return True
        interval_s = _WAIT_AT_END_S if self._is_of_end else ms_to_seconds(self._heartbeat_ms)
        is_over = time.time() > self._end_us / 1e6 + interval_s
        is_still = time.monotonic() - self._advanced_s >= interval_s
        self._stands_still = is_over and is_still
        return self._stands_still

    def _is_end(self, close: Any) -> bool:
        """Return whether a CloseStream ends the read.

        Raises:
            UnavailableError: it says that the stream broke.
        """
        closed = Closed(
            [(row_range(part.partition), part.token) for part in close.continuation_tokens],
            [row_range(partition) for partition in close.new_partitions],
        )
        if closed.tokens:
            if not self._read.is_closed_by(closed):
                _log.warning(
                    "Bigtable closed the partition %s with tokens of %s, which do not make it up;"
                    " it is read again",
                    self._read.partition,
                    ", ".join(str(keys) for keys, _ in closed.tokens),
                )
            self._closed = closed
            return True
        if self._has_end and close.status.code in _ENDS:
            return True
        raise UnavailableError(
            f"Bigtable closed the stream of {self._read.partition} with the status"
            f" {close.status.code}: {close.status.message}",
            "Try again later",
        )

    def _give_up_or_wait(self, error: BaseException, failures: int) -> None:
        if self._cancelled.is_set():
            raise UnavailableError(f"the read of {self._read.partition} was cancelled.")
        is_ours = isinstance(error, ReaderError)
        is_final = failures >= ATTEMPTS_MAX or self._service.is_closed
        # The watchdog's cancelling looks like any other.
        may_retry = is_ours or is_retryable(error) or self._may_be_early(error)
        if is_final or not may_retry:
            raise error if is_ours else to_reader_error(error, self._service.table) from error
        self._wait("OK" if is_ours else code_of(error).name, failures)

    def _may_be_early(self, error: BaseException) -> bool:
        """Return whether a start was refused that may lie in the future by Bigtable's clock."""
        [first, *_] = self._read.positions
        is_start = self._token is None and first.token is None
        is_recent = time.time() * 1e6 - first.at_us < _AHEAD_US
        return is_start and is_recent and code_of(error) is grpc.StatusCode.INVALID_ARGUMENT
