"""The two methods of Bigtable's change streams over a history, as their descriptions have them.

What those leave open is decided here:

- The position of a stream is a time of arrival. Both start_time and end_time are compared with it,
  and both are inclusive.
- A partition can be read while it is one of the tablets of the present, wherever in the past its
  start lies. Otherwise a CloseStream comes at once, with tokens for the position asked for.
- The tablet that serves a call may end meanwhile. Everything that arrived before is sent, and then
  a CloseStream names the tablets that followed it. Who does not read then never hears of it.
- A token may stand for several positions: one of a merged partition, before everything was sent
  that one of its parents had not been sent yet.
"""

import base64
import hashlib
import json
import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol
from zlib import crc32

import grpc

from tests.synthetic.bigtable.history import LARGE_BYTES, History, KeyRange, Tablet
from tests.synthetic.bigtable.messages import (
    PartitionsRequest,
    PartitionsResponse,
    ReadRequest,
    ReadResponse,
    data_changes,
    ending,
    keys_of,
    partition_of,
    response,
)
from tests.synthetic.grpc_over_h2 import AbortError, Ready

TABLE: Final = "projects/project/instances/instance/tables/table"
# The profile that routes to several clusters.
MULTI_CLUSTER: Final = "multi"
_WEEK_US: Final = 7 * 24 * 3_600 * 1_000_000
_HEARTBEAT_US: Final = 5_000_000
# Changes that are made into messages at a time.
_BLOCK: Final = 512
_NONCE_BYTES: Final = 8


class Disturbance(Protocol):
    """Changes what answers a call."""

    def disturb(self, ready: Iterator[Ready], clock_us: Callable[[], int]) -> Iterator[Ready]:
        """Return the answer that the client gets."""


class _Part(NamedTuple):
    """Keys whose changes are to be sent from a position on."""

    keys: KeyRange
    first: int


class BigtableService:
    """Answers requests about one table, in process or behind gRPC.

    Args:
        clock_us: the present. After a time was yielded it must have come.
        faults: break calls.
        retention_us: earlier positions are refused.
        delay_us: changes wait for so long to be sent together.
        bytes_max: a longer message is split.
        seed: of the salt in tokens.
    """

    def __init__(
        self,
        history: History,
        *,
        clock_us: Callable[[], int],
        faults: Disturbance | None = None,
        retention_us: int = _WEEK_US,
        delay_us: int = 0,
        bytes_max: int = LARGE_BYTES,
        seed: int = 0,
    ) -> None:
        self.history = history
        self._clock_us = clock_us
        self._faults = faults
        self._retention_us = retention_us
        self._delay_us = delay_us
        self._bytes_max = bytes_max
        self._salt = random.Random(seed)
        self._encoded: dict[int, list[bytes]] = {}

    def generate(self, request: bytes) -> Iterator[Ready]:
        """Answer GenerateInitialChangeStreamPartitions."""
        return self._disturbed(self._partitions(PartitionsRequest.FromString(request)))

    def read(self, request: bytes) -> Iterator[Ready]:
        """Answer ReadChangeStream."""
        return self._disturbed(self._read(ReadRequest.FromString(request)))

    def encode_all(self) -> None:
        """Make now what is the same in each answer, so that answers take less time."""
        for position in range(len(self.history.changes)):
            self._encode(position)

    def _disturbed(self, ready: Iterator[Ready]) -> Iterator[Ready]:
        return ready if self._faults is None else self._faults.disturb(ready, self._clock_us)

    def _partitions(self, asked: Any) -> Iterator[Ready]:
        _require_table(asked)
        yield [
            PartitionsResponse(partition=partition_of(tablet.keys)).SerializeToString()
            for tablet in self.history.tablets_at(self._clock_us())
        ]

    def _read(self, asked: Any) -> Iterator[Ready]:
        _require_table(asked)
        now_us, keys = self._clock_us(), keys_of(asked.partition)
        parts = self._parts(asked, keys, now_us)
        for tablet in self.history.tablets_at(now_us):
            if tablet.keys == keys:
                yield from self._stream(asked, tablet, parts)
                return
        yield [self._closed(keys, parts, 0, now_us)]

    def _stream(self, asked: Any, tablet: Tablet, parts: Sequence[_Part]) -> Iterator[Ready]:
        """Changes and heartbeats until the tablet ends or the end time has passed."""
        history, keys = self.history, tablet.keys
        # In a merged partition the changes of its parts come by turns.
        waiting = sorted(i for part in parts for i in history.positions(*part))
        heartbeat_us = _heartbeat_us(asked)
        end_us = asked.end_time.ToMicroseconds() if asked.HasField("end_time") else None
        lasts = [us for us in (end_us, tablet.until_us and tablet.until_us - 1) if us is not None]
        last_us = min(lasts, default=None)
        beat_us = self._clock_us() + heartbeat_us
        sent, position = 0, min(part.first for part in parts)
        while True:
            now_us = self._clock_us()
            stall = history.stall_at(keys, now_us)
            visible_us = stall.from_us if stall else now_us
            through_us = visible_us if last_us is None else min(visible_us, last_us)
            bound = history.position_at(through_us + 1)
            past = bisect_left(waiting, bound)
            block = waiting[sent : min(past, sent + _BLOCK)]
            if block:
                yield self._data(block, keys, parts)
                sent, position = sent + len(block), block[-1] + 1
            if sent < past:
                through_us = history.changes[block[-1]].arrival_us
            else:
                position = max(position, bound)
                if last_us is not None and visible_us > last_us:
                    # At an end time that is a tablet's last, too, the stream has finished.
                    is_end = last_us == end_us
                    yield [
                        _FINISHED if is_end else self._closed(keys, parts, position, last_us + 1)
                    ]
                    return
            if now_us >= beat_us:
                yield [self._heartbeat(keys, parts, position, through_us)]
                beat_us = now_us + heartbeat_us
            if sent == past:
                times = [beat_us, stall.until_us if stall else None, last_us and last_us + 1]
                if not stall and sent < len(waiting):
                    times.append(history.changes[waiting[sent]].arrival_us)
                next_us = min(us for us in times if us is not None and us > now_us)
                yield max(next_us, now_us + self._delay_us)

    def _parts(self, asked: Any, keys: KeyRange, now_us: int) -> list[_Part]:
        """Return where the stream of each part of a partition begins."""
        if asked.partition.row_range.WhichOneof("start_key") == "start_key_open" or (
            asked.partition.row_range.WhichOneof("end_key") == "end_key_closed"
        ):
            raise _invalid("A partition is [start_key_closed, end_key_open).")
        earliest_us = max(now_us - self._retention_us, self.history.created_us)
        if asked.WhichOneof("start_from") == "start_time":
            start_us = asked.start_time.ToMicroseconds()
            if start_us > now_us:
                raise _invalid("start_time must not be in the future.")
            _require_retained(start_us, earliest_us)
            return [_Part(keys, self.history.position_at(start_us))]
        tokens = [(keys_of(t.partition), t.token) for t in asked.continuation_tokens.tokens]
        tokens.sort()
        ranges = [token_keys for token_keys, _ in tokens]
        if (
            not tokens
            or KeyRange(ranges[0].start_key, ranges[-1].end_key) != keys
            or not all(a.end_key and a.end_key == b.start_key for a, b in pairwise(ranges))
        ):
            raise _invalid("The tokens' partitions must exactly cover the request's partition.")
        parts = [part for token in tokens for part in _opened(*token)]
        first = min(part.first for part in parts)
        if first < len(self.history.changes):
            _require_retained(self.history.changes[first].arrival_us, earliest_us)
        return parts

    def _data(self, block: Sequence[int], keys: KeyRange, parts: Sequence[_Part]) -> list[bytes]:
        messages = []
        changes, lag_us = self.history.changes, self.history.lag_us
        for position in block:
            encoded = self._encode(position)
            messages += encoded[:-1]
            token = self._token(keys, parts, position + 1)
            end = ending(token, changes[position].arrival_us - lag_us)
            messages.append(response(encoded[-1] + end))
        return messages

    def _encode(self, position: int) -> list[bytes]:
        """Return the messages of a change; the last one is not whole, see data_changes."""
        encoded = self._encoded.get(position)
        if encoded is None:
            encoded = data_changes(self.history.changes[position], self._bytes_max)
            encoded[:-1] = map(response, encoded[:-1])
            self._encoded[position] = encoded
        return encoded

    def _heartbeat(
        self, keys: KeyRange, parts: Sequence[_Part], position: int, time_us: int
    ) -> bytes:
        message = ReadResponse()
        token = message.heartbeat.continuation_token
        token.partition.CopyFrom(partition_of(keys))
        token.token = self._token(keys, parts, position)
        message.heartbeat.estimated_low_watermark.FromMicroseconds(time_us - self.history.lag_us)
        return bytes(message.SerializeToString())

    def _closed(self, keys: KeyRange, parts: Sequence[_Part], position: int, at_us: int) -> bytes:
        """The tablets of a time take over: one token for each, of the keys that it has of these."""
        message = ReadResponse()
        close = message.close_stream
        close.status.code = grpc.StatusCode.OUT_OF_RANGE.value[0]
        close.status.message = "The partition was split or merged."
        for tablet in self.history.tablets_at(at_us):
            if common := keys.overlap(tablet.keys):
                token = self._token(common, parts, position)
                close.continuation_tokens.add(partition=partition_of(common), token=token)
                close.new_partitions.append(partition_of(tablet.keys))
        return bytes(message.SerializeToString())

    def _token(self, keys: KeyRange, parts: Sequence[_Part], position: int) -> str:
        """Return a token of some keys, whose parts were all sent up to a position.

        It is masked with its salt, and says nothing to who does not take the mask off.
        """
        tiles = []
        if any(part.first > position for part in parts):
            tiles = [
                (common, max(part.first, position))
                for part in parts
                if (common := keys.overlap(part.keys))
            ]
            if len({first for _, first in tiles}) == 1:
                tiles, position = [], tiles[0][1]
        hexadecimal = [(start.hex(), end.hex(), first) for (start, end), first in tiles]
        plain = f"[{_tag(keys)},{position},{json.dumps(hexadecimal)}]".encode()
        nonce = self._salt.randbytes(_NONCE_BYTES)
        return base64.b64encode(nonce + _masked(plain, nonce)).decode()


_FINISHED: Final = ReadResponse(close_stream={"status": {}}).SerializeToString()


def _opened(keys: KeyRange, token: str) -> list[_Part]:
    """Return the parts that a token of some keys stands for."""
    try:
        sealed = base64.b64decode(token, validate=True)
        nonce = sealed[:_NONCE_BYTES]
        tag, position, tiles = json.loads(_masked(sealed[_NONCE_BYTES:], nonce))
    except ValueError:
        raise _invalid("The continuation token is malformed.") from None
    if tag != _tag(keys):
        raise _invalid("The continuation token is of another partition.")
    return [
        _Part(KeyRange(bytes.fromhex(start_key), bytes.fromhex(end_key)), first)
        for start_key, end_key, first in tiles
    ] or [_Part(keys, position)]


def _tag(keys: KeyRange) -> int:
    return crc32(keys.end_key, crc32(keys.start_key + b"|"))


def _masked(data: bytes, nonce: bytes) -> bytes:
    mask = int.from_bytes(hashlib.shake_128(nonce).digest(len(data)))
    return (int.from_bytes(data) ^ mask).to_bytes(len(data))


def _heartbeat_us(asked: Any) -> int:
    if not asked.HasField("heartbeat_duration"):
        return _HEARTBEAT_US
    return max(1, int(asked.heartbeat_duration.ToMicroseconds()))


def _require_table(asked: Any) -> None:
    if asked.table_name != TABLE:
        raise AbortError(grpc.StatusCode.NOT_FOUND, f"Table not found: {asked.table_name}")
    if asked.app_profile_id == MULTI_CLUSTER:
        raise AbortError(
            grpc.StatusCode.FAILED_PRECONDITION,
            "Change streams need an app profile with single-cluster routing.",
        )


def _require_retained(time_us: int, earliest_us: int) -> None:
    if time_us < earliest_us:
        raise AbortError(
            grpc.StatusCode.OUT_OF_RANGE,
            "The stream's position is before the retention period or the stream's creation.",
        )


def _invalid(details: str) -> AbortError:
    return AbortError(grpc.StatusCode.INVALID_ARGUMENT, details)
