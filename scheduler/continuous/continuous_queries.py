"""The source that a task sees with continuous reading: the reader process, or queries of its own.

The first query of a task asks the reader process for all partitions that the task begins with, in
one request. Child partitions, and what was too much for one answer, are asked for one by one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import pyarrow as pa

from slackwater.reader.errors import UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer, Rows
from slackwater.scheduler.change_source import PartitionQueries, Query
from slackwater.scheduler.continuous.follower import Wanted
from slackwater.scheduler.continuous.frames import FollowedStream, Frame, Request, Share
from slackwater.state.models import PartitionKey
from slackwater.timestamp import ms_to_seconds

_log = logging.getLogger(__name__)

# What a task holds of an answer about many partitions, whose threads take their parts.
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
# A partition may be this much later than its heartbeat interval says.
_LATE_S: Final = 1.0


class Reader(Protocol):
    """The reader process beside these workers."""

    def take(self, request: Request) -> Iterator[Frame]:
        """Yield the frames of the answer.

        Raises:
            OSError, EOFError: there is no reader process, or it has ended.
        """

    def start_if_missing(self) -> None:
        """Start it unless it runs.

        Raises:
            OSError: it can't be started.
        """


@dataclass(frozen=True, slots=True)
class _Part:
    """A partition's part of a frame."""

    batch: pa.RecordBatch
    share: Share


class ContinuousQueries:
    """A PartitionQueries for the tasks of one epoch.

    Args:
        source: opens queries where the reader process has no answer.
        reader: the reader process.
        stream: the change stream, as the reader process is to follow it.
        roots: the partitions that the task begins with, each with the first time to read.
        end_ns: the epoch's end.
    """

    def __init__(
        self,
        source: PartitionQueries,
        reader: Reader,
        stream: FollowedStream,
        roots: Sequence[Wanted],
        end_ns: int,
    ) -> None:
        self._source = source
        self._reader = reader
        self._stream = stream
        self._roots = roots
        self._are_roots = frozenset(roots)
        self._end_ns = end_ns
        self._lock = threading.Lock()
        self._has_asked = False
        self._answers: dict[Wanted, list[_Part]] = {}
        self._left: set[Wanted] = set()

    def require_same_functions(self) -> None:
        """Check the change stream's read functions, as PartitionQueries explains."""
        self._source.require_same_functions()

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        """Return a query that takes its records from the reader process if that has them."""
        want = Wanted(PartitionKey(function, token), start_ns)
        return ContinuousQuery(
            lambda: self._parts(want),
            lambda: self._source.query(token, start_ns, end_ns, function),
            self._end_ns,
        )

    def _parts(self, want: Wanted) -> Iterator[_Part] | None:
        """Return a partition's records; None if the reader process does not have them."""
        with self._lock:
            if not self._has_asked:
                self._has_asked = True
                self._ask_for_roots()
            parts = self._answers.pop(want, None)
            is_left = want in self._left
        if parts is not None:
            return iter(parts)
        if want in self._are_roots and not is_left:
            return None
        return self._ask_for(want)

    def _ask_for_roots(self) -> None:
        parts: dict[int, list[_Part]] = {}
        try:
            for frame in self._reader.take(self._request(self._roots, _ANSWER_BYTES_MAX)):
                for part in _parts_of(frame):
                    parts.setdefault(part.share.position, []).append(part)
                self._left.update(self._roots[position] for position in frame.left)
        except (OSError, EOFError):
            self._start_reader()
            return
        self._answers = {self._roots[position]: of_one for position, of_one in parts.items()}

    def _ask_for(self, want: Wanted) -> Iterator[_Part] | None:
        """Return one partition's records as they come; None if there is no answer."""
        try:
            frames = self._reader.take(self._request([want], None))
            parts = [part for frame in _first(frames) for part in _parts_of(frame)]
        except (OSError, EOFError):
            return None
        return _joined(parts, frames) if parts else None

    def _request(self, wanted: Sequence[Wanted], bytes_max: int | None) -> Request:
        wait_s = _LATE_S + ms_to_seconds(self._stream.heartbeat_ms) / 2
        return Request(self._stream, tuple(wanted), self._end_ns, wait_s, bytes_max)

    def _start_reader(self) -> None:
        try:
            self._reader.start_if_missing()
        except OSError as error:
            _log.warning("the reader process can't be started, so each epoch asks: %s", error)


def forget(reader: Reader, stream: FollowedStream, end_ns: int) -> None:
    """Have the reader process forget what it holds of a change stream, because it may be wrong."""
    try:
        for _ in reader.take(Request(stream, (), end_ns, 0.0, is_suspect=True)):
            pass
    except (OSError, EOFError):
        return


class ContinuousQuery:
    """The records of one partition in one epoch, from the reader process or from Spanner.

    Args:
        parts: returns the partition's records, None if the reader process does not have them.
        ask: opens the query that is run then.
        end_ns: the epoch's end.
    """

    def __init__(
        self,
        parts: Callable[[], Iterator[_Part] | None],
        ask: Callable[[], Query],
        end_ns: int,
    ) -> None:
        self._parts = parts
        self._ask = ask
        self._end_ns = end_ns
        self._lock = threading.Lock()
        self._query: Query | None = None
        self._is_cancelled = False

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        """Hand on the partition's records, as Query explains."""
        parts = self._parts()
        if parts is None:
            self._run_query(decoder, consumer)
            return
        for part in parts:
            if part.share.rows:
                decoder.add_rows(consumer, Rows.of(part.batch))
            decoder.add_records(consumer, part.share.others)

    def _run_query(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        query = self._ask()
        with self._lock:
            self._query = query
            if self._is_cancelled:
                query.cancel()
        query.run(decoder, consumer)

    def cancel(self) -> None:
        """End it early, from another thread."""
        with self._lock:
            self._is_cancelled = True
            if self._query is not None:
                self._query.cancel()

    @property
    def watermark_ns(self) -> int:
        """The time through which the partition is complete; the epoch's end, until a query runs."""
        return self._end_ns if self._query is None else self._query.watermark_ns

    @property
    def open_ms(self) -> int:
        """The time since the query was opened; 0 if there is none."""
        return 0 if self._query is None else self._query.open_ms

    @property
    def silent_ms(self) -> int:
        """The time since the source's last message."""
        return 0 if self._query is None else self._query.silent_ms

    @property
    def was_asked(self) -> bool:
        """True if Spanner had to be asked."""
        return self._query is not None

    @property
    def stalls(self) -> int:
        """How often the query stalled."""
        return 0 if self._query is None else self._query.stalls

    @property
    def retried(self) -> Mapping[str, int]:
        """How often the query was opened again, by gRPC's status code."""
        return MappingProxyType({}) if self._query is None else self._query.retried


def _parts_of(frame: Frame) -> Iterator[_Part]:
    begin, rows = 0, frame.rows()
    for share in frame.shares:
        yield _Part(rows.slice(begin, share.rows), share)
        begin += share.rows


def _first(frames: Iterator[Frame]) -> Iterator[Frame]:
    frame = next(frames, None)
    if frame is not None:
        yield frame


def _joined(parts: Sequence[_Part], frames: Iterator[Frame]) -> Iterator[_Part]:
    """Yield one partition's records, the first of them received already.

    Raises:
        UnavailableError: the reader process has ended meanwhile; the task is to be tried again.
    """
    yield from parts
    try:
        for frame in frames:
            yield from _parts_of(frame)
    except (OSError, EOFError) as error:
        raise UnavailableError("the reader process ended in the middle of an answer.") from error
