"""A task's source with continuous reading: the reader process, or queries of its own.

The first query of a task asks the reader process for all partitions that the task begins with, in
one request. Child partitions, and partitions that one answer had no room for, follow one by one.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Protocol

import pyarrow as pa

from slackwater.reader.errors import UnavailableError
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer
from slackwater.reader.query.rows import Rows
from slackwater.reader.transport.receive_loop import wait_aside
from slackwater.scheduler.change_source import PartitionQueries, Query
from slackwater.scheduler.continuous.follower import Wanted
from slackwater.scheduler.continuous.frames import FollowedStream, Frame, FrameEntry, Request
from slackwater.state.models import PartitionKey
from slackwater.timestamp import ms_to_seconds

_log = logging.getLogger(__name__)

# A task holds so much of an answer about many partitions until their threads take their parts.
_ANSWER_BYTES_MAX: Final = 32 * 1024 * 1024
# A partition may be this much later than its heartbeat interval says.
_LATE_S: Final = 1.0


class Reader(Protocol):
    """The reader process beside these workers."""

    def read(self, request: Request) -> Iterator[Frame]:
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
    entry: FrameEntry


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
        self._root_set = frozenset(roots)
        self._end_ns = end_ns
        self._lock = threading.Lock()
        self._has_requested_roots = False
        self._answers: dict[Wanted, list[_Part]] = {}
        self._deferred: set[Wanted] = set()

    def require_same_functions(self) -> None:
        """Check the change stream's read functions, as PartitionQueries explains."""
        self._source.require_same_functions()

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        """Return a query that reads from the reader process if that has the partition's records."""
        want = Wanted(PartitionKey(function, token), start_ns)
        return ContinuousQuery(
            lambda: self._parts(want),
            lambda: self._source.query(token, start_ns, end_ns, function),
            self._end_ns,
        )

    def _parts(self, want: Wanted) -> Iterator[_Part] | None:
        """Return a partition's records; None if the reader process does not have them."""
        with self._lock:
            if not self._has_requested_roots:
                self._has_requested_roots = True
                self._request_roots()
            parts = self._answers.pop(want, None)
            is_deferred = want in self._deferred
        if parts is not None:
            return iter(parts)
        if want in self._root_set and not is_deferred:
            return None
        return self._request_one(want)

    def _request_roots(self) -> None:
        parts: dict[int, list[_Part]] = {}
        try:
            for frame in self._reader.read(self._request(self._roots, _ANSWER_BYTES_MAX)):
                for part in _parts_of(frame):
                    parts.setdefault(part.entry.position, []).append(part)
                self._deferred.update(self._roots[position] for position in frame.deferred)
        except (OSError, EOFError):
            self._start_reader()
            return
        self._answers = {self._roots[position]: of_one for position, of_one in parts.items()}

    def _request_one(self, want: Wanted) -> Iterator[_Part] | None:
        """Return one partition's records as they come; None if there is no answer."""
        try:
            frames = self._reader.read(self._request([want], None))
            # The answer may wait for the end of the epoch.
            frame = wait_aside(lambda: next(frames, None))
        except (OSError, EOFError):
            return None
        parts = [] if frame is None else list(_parts_of(frame))
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
    """Have the reader process forget its records of a change stream, which may be wrong."""
    try:
        for _ in reader.read(Request(stream, (), end_ns, 0.0, is_suspect=True)):
            pass
    except (OSError, EOFError):
        return


class ContinuousQuery:
    """The records of one partition in one epoch, from the reader process or from Spanner.

    Args:
        parts: returns the partition's records, None if the reader process does not have them.
        open_query: opens the query that is run then.
        end_ns: the epoch's end.
    """

    def __init__(
        self,
        parts: Callable[[], Iterator[_Part] | None],
        open_query: Callable[[], Query],
        end_ns: int,
    ) -> None:
        self._parts = parts
        self._open_query = open_query
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
            if part.entry.rows:
                decoder.add_rows(consumer, Rows.of(part.batch))
            decoder.add_records(consumer, part.entry.others)

    def _run_query(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        query = self._open_query()
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
    def queried_source(self) -> bool:
        """True if Spanner was queried."""
        return self._query is not None

    @property
    def stalls(self) -> int:
        """The number of times that the query stalled."""
        return 0 if self._query is None else self._query.stalls

    @property
    def retried(self) -> Mapping[str, int]:
        """The number of times that the query was opened again, by gRPC's status code."""
        return MappingProxyType({}) if self._query is None else self._query.retried


def _parts_of(frame: Frame) -> Iterator[_Part]:
    begin, rows = 0, frame.rows()
    for entry in frame.entries:
        yield _Part(rows.slice(begin, entry.rows), entry)
        begin += entry.rows


def _joined(parts: Sequence[_Part], frames: Iterator[Frame]) -> Iterator[_Part]:
    """Yield one partition's records, the first of them received already.

    Raises:
        UnavailableError: the reader process has ended meanwhile; the task is to be tried again.
    """
    yield from parts
    try:
        while (frame := wait_aside(lambda: next(frames, None))) is not None:
            yield from _parts_of(frame)
    except (OSError, EOFError) as error:
        raise UnavailableError("the reader process ended in the middle of an answer.") from error
