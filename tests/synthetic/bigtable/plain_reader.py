"""A client that reads a whole change stream by the rules in the protocol's description.

It is the simplest that is right, to compare others with: one step after the other, without threads.
"""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import grpc

from tests.synthetic.bigtable.history import (
    AddToCell,
    Change,
    DeleteCells,
    DeleteFamily,
    Entry,
    KeyRange,
    MergeToCell,
    SetCell,
)
from tests.synthetic.bigtable.messages import (
    PartitionsRequest,
    PartitionsResponse,
    ReadRequest,
    ReadResponse,
    keys_of,
    partition_of,
)
from tests.synthetic.grpc_over_h2 import AbortError, Ready

Answer = Callable[[bytes], Iterator[Ready]]
# So long a token waits for others to cover a new partition with it.
_PATIENCE_US: Final = 500_000


@dataclass
class Assembler:
    """Makes changes of the messages of one call; their arrival is that of their commit.

    Raises:
        AssertionError: a message is not as described.
    """

    _entries: list[Entry] = field(default_factory=list)
    _first: Any = None
    _cut: Any = None
    _value: bytes = b""

    def add(self, message: Any) -> Change | None:
        """Take a DataChange; return the change that it completes, if it does."""
        if self._first is None:
            assert message.type_ in {1, 2}, message
            assert message.row_key, message
            assert bool(message.source_cluster_id) == (message.type_ == 1), message
            self._first = message
        else:
            assert message.type_ == 3, message
            assert not message.row_key, message
        for chunk in message.chunks:
            self._take(chunk)
        assert message.done == bool(message.token), message
        if not message.done:
            return None
        assert self._cut is None, message
        first, entries = self._first, tuple(self._entries)
        self._first, self._entries = None, []
        commit_us = first.commit_timestamp.ToMicroseconds()
        return Change(
            commit_us,
            commit_us,
            first.row_key,
            first.tiebreaker,
            first.source_cluster_id,
            first.type_ == 2,
            entries,
        )

    def _take(self, chunk: Any) -> None:
        if not chunk.HasField("chunk_info"):
            assert self._cut is None, chunk
            self._entries.append(_entry(chunk.mutation))
            return
        info, cell = chunk.chunk_info, chunk.mutation.set_cell
        assert info.chunked_value_offset == len(self._value), chunk
        self._cut = self._cut or cell
        self._value += cell.value
        if info.last_chunk:
            assert info.chunked_value_size == len(self._value), chunk
            whole = _entry(chunk.mutation.__class__(set_cell=self._cut))
            assert isinstance(whole, SetCell)
            self._entries.append(
                SetCell(whole.family, whole.qualifier, whole.timestamp_us, self._value)
            )
            self._cut, self._value = None, b""


def _entry(mutation: Any) -> Entry:
    match mutation.WhichOneof("mutation"):
        case "set_cell":
            cell = mutation.set_cell
            return SetCell(
                cell.family_name, cell.column_qualifier, cell.timestamp_micros, cell.value
            )
        case "delete_from_column":
            cell, times = mutation.delete_from_column, mutation.delete_from_column.time_range
            return DeleteCells(
                cell.family_name,
                cell.column_qualifier,
                times.start_timestamp_micros,
                times.end_timestamp_micros,
            )
        case "delete_from_family":
            return DeleteFamily(mutation.delete_from_family.family_name)
        case "add_to_cell":
            cell = mutation.add_to_cell
            at = (cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros)
            return AddToCell(cell.family_name, *at, cell.input.int_value)
        case _:
            cell = mutation.merge_to_cell
            at = (cell.column_qualifier.raw_value, cell.timestamp.raw_timestamp_micros)
            return MergeToCell(cell.family_name, *at, cell.input.raw_value)


@dataclass
class _Call:
    """A call that goes on.

    Attributes:
        tokens: what it may be resumed with, by the keys that each is for; none from the start.
        wake_us: when there may be more.
        watermark_us: the last low watermark.
    """

    keys: KeyRange
    tokens: Mapping[KeyRange, str]
    ready: Iterator[Ready]
    wake_us: int
    watermark_us: int = 0
    assembler: Assembler = field(default_factory=Assembler)


class PlainReader:
    """Reads a table's changes from one time to another.

    Args:
        generate, read: answer the two methods.
        request: has the table, and what all of its calls ask for, such as the end.
        clock_us: the present.
        sleep_until: waits for a time; time passes only so.
        seed: of the order of its steps.

    Attributes:
        changes: what was read, in order.
        early: those among them that were committed before their call's low watermark.
        errors: how calls ended that were broken, and None for those without any end.
        closed: partitions that others followed.
    """

    def __init__(
        self,
        generate: Answer,
        read: Answer,
        request: Any,
        *,
        clock_us: Callable[[], int],
        sleep_until: Callable[[int], None],
        seed: int = 0,
    ) -> None:
        self._generate = generate
        self._read = read
        self._request = request
        self._clock_us = clock_us
        self._sleep_until = sleep_until
        self._choose = random.Random(seed)
        self._calls: list[_Call] = []
        # What nobody reads: its token and since when; and partitions that wait for their tokens.
        self._idle: dict[KeyRange, tuple[str, int]] = {}
        self._wanted: set[KeyRange] = set()
        # What was read to the end, and with what it would be read again.
        self._finished: dict[KeyRange, Mapping[KeyRange, str]] = {}
        self.changes: list[Change] = []
        self.early: list[Change] = []
        self.errors: list[grpc.StatusCode | None] = []
        self.closed: list[KeyRange] = []

    def run(self) -> None:
        """Read everything."""
        for keys in self._first():
            self._open(keys, {})
        while self._calls or self._idle:
            self._open_covered()
            waits = [call.wake_us for call in self._calls]
            waits += [since_us + _PATIENCE_US for _, since_us in self._idle.values()]
            self._sleep_until(min(waits))
            now_us = self._clock_us()
            # A token whose new partition is not covered is read alone: that may be a tablet again.
            for keys, (token, since_us) in list(self._idle.items()):
                if since_us + _PATIENCE_US <= now_us:
                    del self._idle[keys]
                    self._open(keys, {keys: token})
            due = [call for call in self._calls if call.wake_us <= now_us]
            for call in self._choose.sample(due, len(due)):
                self._step(call)

    def _first(self) -> list[KeyRange]:
        asked = PartitionsRequest(table_name=self._request.table_name).SerializeToString()
        while True:
            try:
                return [
                    keys_of(PartitionsResponse.FromString(message).partition)
                    for ready in self._generate(asked)
                    if not isinstance(ready, int)
                    for message in ready
                ]
            except AbortError as error:
                self.errors.append(error.code)

    def _open(self, keys: KeyRange, tokens: Mapping[KeyRange, str]) -> None:
        asked = ReadRequest()
        asked.CopyFrom(self._request)
        asked.partition.CopyFrom(partition_of(keys))
        for token_keys, token in tokens.items():
            asked.continuation_tokens.tokens.add(partition=partition_of(token_keys), token=token)
        ready = self._read(asked.SerializeToString())
        self._calls.append(_Call(keys, tokens, ready, self._clock_us()))

    def _open_covered(self) -> None:
        for keys in sorted(self._wanted):
            parts = sorted(part for part in self._idle if _holds(keys, part))
            if _tile(keys, parts):
                self._wanted.discard(keys)
                self._open(keys, {part: self._idle.pop(part)[0] for part in parts})

    def _step(self, call: _Call) -> None:
        """Take what is ready of a call."""
        try:
            ready = next(call.ready, None)
        except AbortError as error:
            self._resume(call, error.code)
            return
        if ready is None:
            self._resume(call, None)
        elif isinstance(ready, int):
            call.wake_us = ready
        else:
            for message in ready:
                self._take(call, ReadResponse.FromString(message))

    def _take(self, call: _Call, message: Any) -> None:
        kind = message.WhichOneof("stream_record")
        if kind == "data_change":
            change = call.assembler.add(message.data_change)
            if change is not None:
                call.tokens = {call.keys: message.data_change.token}
                self.changes.append(change)
                if change.commit_us < call.watermark_us:
                    self.early.append(change)
                call.watermark_us = message.data_change.estimated_low_watermark.ToMicroseconds()
        elif kind == "heartbeat":
            token = message.heartbeat.continuation_token
            assert keys_of(token.partition) == call.keys
            call.tokens = {call.keys: token.token}
            call.watermark_us = message.heartbeat.estimated_low_watermark.ToMicroseconds()
        else:
            self._close(call, message.close_stream)

    def _close(self, call: _Call, close: Any) -> None:
        self._calls.remove(call)
        tokens = {keys_of(t.partition): t.token for t in close.continuation_tokens}
        new = [keys_of(partition) for partition in close.new_partitions]
        assert close.status.code == (11 if tokens else 0), close
        assert len(new) == len(tokens), close
        if not tokens:
            self._finished[call.keys] = call.tokens
        else:
            self.closed.append(call.keys)
            assert _tile(call.keys, list(tokens)), close
            assert all(_holds(*pair) for pair in zip(new, tokens, strict=True)), close
            now_us = self._clock_us()
            self._idle |= {keys: (token, now_us) for keys, token in tokens.items()}
            self._wanted |= set(new)
            # Its tokens may have to cover a new partition. Read again, it has nothing more to send:
            # it ends at once, or is closed with tokens.
            for keys in [k for k in self._finished if any(map(k.overlap, new))]:
                self._open(keys, self._finished.pop(keys))

    def _resume(self, call: _Call, code: grpc.StatusCode | None) -> None:
        """Read again what a call has not sent."""
        if call in self._calls:
            self._calls.remove(call)
            self.errors.append(code)
            self._open(call.keys, call.tokens)


def _holds(keys: KeyRange, part: KeyRange) -> bool:
    return keys.overlap(part) == part


def _tile(keys: KeyRange, parts: Sequence[KeyRange]) -> bool:
    """Return True if parts that are in order cover some keys."""
    return (
        bool(parts)
        and KeyRange(parts[0].start_key, parts[-1].end_key) == keys
        and all(a.end_key == b.start_key for a, b in pairwise(parts))
    )
