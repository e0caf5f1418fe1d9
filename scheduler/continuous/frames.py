"""The answer of the reader process, in frames: records of many partitions in one Arrow batch."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa

from slackwater.reader.change_stream import ChangeStream, Dialect, PartitionMode
from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.records import ChangeRecord, DataChangeRecord
from slackwater.reader.schema import DATA_SCHEMA
from slackwater.scheduler.continuous.followed_partition import Portion
from slackwater.scheduler.continuous.follower import Wanted

# Also the most that a task and the reader process hold of an answer that is sent in frames.
FRAME_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class FollowedStream:
    """The change stream whose queries stay open, and how they are asked.

    Attributes:
        pipeline: two pipelines that read the same stream have queries of their own.
        heartbeat_ms: the heartbeat interval asked of Spanner.
        memory_bytes: how much the records may take that are waiting for their tasks.
    """

    pipeline: str
    change_stream: ChangeStream
    dialect: Dialect
    mode: PartitionMode
    heartbeat_ms: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Request:
    """A task's request to the reader process.

    Attributes:
        stream: the change stream.
        wanted: the partitions, each with the first time that is wanted.
        end_ns: the last time that is wanted, inclusive.
        wait_s: how long the process may wait for partitions that are not complete yet.
        bytes_max: partitions whose records would be more than this together are left for later
            requests; None for no limit.
        is_suspect: the process's records may be wrong, and are not to be used.
    """

    stream: FollowedStream
    wanted: tuple[Wanted, ...]
    end_ns: int
    wait_s: float
    bytes_max: int | None = None
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One partition's records in a frame.

    Attributes:
        position: the partition's index in the request.
        rows: the number of its rows.
        others: its records of other kinds.
    """

    position: int
    rows: int
    others: tuple[ChangeRecord, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A part of an answer.

    Attributes:
        entries: the partitions' entries, in the order of the rows.
        batch: data change records, as an Arrow IPC stream; empty if there are none.
        deferred: the positions of the partitions that were left for later requests.
    """

    entries: tuple[FrameEntry, ...]
    batch: bytes = b""
    deferred: tuple[int, ...] = ()

    def rows(self) -> pa.RecordBatch:
        """Return the data change records of all entries."""
        if not self.batch:
            return pa.RecordBatch.from_pylist([], schema=DATA_SCHEMA)
        return pa.ipc.open_stream(self.batch).read_next_batch()


@dataclass(slots=True)
class _FrameMaker:
    """A collector of entries until they are enough for a frame."""

    entries: list[FrameEntry] = field(default_factory=list)
    batches: list[pa.RecordBatch] = field(default_factory=list)
    records: list[DataChangeRecord] = field(default_factory=list)
    size_bytes: int = 0

    def add(self, position: int, portion: Portion) -> Iterator[Frame]:
        """Add a partition, and yield the frames that are full."""
        rows = 0
        for batch in _pieces(portion.rows):
            self._gather_records()
            self.batches.append(batch)
            self.size_bytes += batch.nbytes
            rows += batch.num_rows
            if self.size_bytes >= FRAME_BYTES_MAX:
                self.entries.append(FrameEntry(position, rows, ()))
                yield self.frame()
                rows = 0
        self.records += portion.records
        rows += len(portion.records)
        self.entries.append(FrameEntry(position, rows, portion.others))

    def frame(self, deferred: Sequence[int] = ()) -> Frame:
        """Return the collected entries, and begin again."""
        self._gather_records()
        sink = pa.BufferOutputStream()
        if self.batches:
            batch = pa.concat_batches(self.batches)
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
        frame = Frame(tuple(self.entries), sink.getvalue().to_pybytes(), tuple(deferred))
        self.entries, self.batches, self.size_bytes = [], [], 0
        return frame

    def _gather_records(self) -> None:
        """Make columns of records that were not in columns, those of many partitions together."""
        if self.records:
            batch = data_columns(self.records)
            self.batches.append(batch)
            self.size_bytes += batch.nbytes
            self.records = []


def _pieces(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of batches in pieces that fit into a frame."""
    for batch in batches:
        rows = max(1, batch.num_rows * FRAME_BYTES_MAX // max(1, batch.nbytes))
        for begin in range(0, batch.num_rows, rows):
            yield batch.slice(begin, rows)


def frames(
    wanted: Sequence[Wanted], portions: Mapping[Wanted, Portion], bytes_max: int | None
) -> Iterator[Frame]:
    """Yield the frames of an answer; the last one says which partitions were left for later.

    Args:
        wanted: the partitions of the request.
        portions: the records of those that are complete.
        bytes_max: as in Request.
    """
    maker = _FrameMaker()
    sent_bytes = 0
    deferred = []
    for position, want in enumerate(wanted):
        portion = portions.get(want)
        if portion is None:
            continue
        size_bytes = portion.size_bytes
        if bytes_max is not None and sent_bytes + size_bytes > bytes_max:
            deferred.append(position)
            continue
        sent_bytes += size_bytes
        yield from maker.add(position, portion)
    yield maker.frame(deferred)
