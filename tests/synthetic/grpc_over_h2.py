"""A gRPC server small and fast enough not to be what a benchmark measures.

grpcio's own server takes some 50 us to send one message, several times what receiving it costs;
here messages that are ready go out together, as many as fit into a frame of HTTP/2. See "gRPC over
HTTP2" in gRPC's documentation.
"""

import asyncio
import multiprocessing
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final, Self
from urllib.parse import quote

import grpc
from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple

# What a stream yields: messages that are ready, or the time to wait for, microseconds.
Ready = list[bytes] | int
Unary = Callable[[bytes], bytes]
Stream = Callable[[bytes], Iterator[Ready]]

# HTTP/2's frames (RFC 9113).
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER: Final = struct.Struct(">BHBBI")
_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _WINDOW_UPDATE, _CONTINUATION = 0, 1, 3, 4, 6, 8, 9
_ACK, _END_STREAM, _END_HEADERS, _PADDED, _PRIORITY = 0x1, 0x1, 0x4, 0x8, 0x20
_MAX_CONCURRENT_STREAMS, _INITIAL_WINDOW_SIZE, _MAX_FRAME_SIZE = 3, 4, 5
_SETTING: Final = struct.Struct(">HI")
_NUMBER: Final = struct.Struct(">I")
# As many as Spanner's service allows.
_STREAMS_MAX: Final = 100
# Of requests, which are small.
_ROOM: Final = 1 << 20
# Then others have their turn.
_TURN_BYTES: Final = 1 << 16


class AbortError(Exception):
    """The call ends with a status."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code
        self.details = details


class GrpcServer:
    """Serves in a thread of its own.

    Args:
        unary: what answers a call, by method.
        streams: what answers a call with many messages, by method.
    """

    def __init__(self, unary: dict[str, Unary], streams: dict[str, Stream]) -> None:
        self.unary = unary
        self.streams = streams
        self.host = ""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        """Listen on a free port."""
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(30)
        return self

    def __exit__(self, *error: object) -> None:
        """Close everything."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _listen(self) -> None:
        server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.host = "{}:{}".format(*server.sockets[0].getsockname())
        self._server = server

    async def _end(self) -> None:
        self._server.close()


class _Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._received = bytearray()
        self._has_begun = False
        self._taken = 0
        self._headers = _RequestHeaders()
        self._block = b""
        self._calls: dict[int, _Call] = {}
        self._out: list[bytes] = []
        # What the client takes.
        self.window = self.stream_window = 65_535
        self.frame_max = 16_384

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        offered = {_MAX_CONCURRENT_STREAMS: _STREAMS_MAX, _INITIAL_WINDOW_SIZE: _ROOM}
        self.send(_SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in offered.items()))
        self.send(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(_ROOM))
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for call in self._calls.values():
            call.cancel()
        self._calls.clear()

    def data_received(self, data: bytes) -> None:
        received = self._received
        received += data
        at = 0
        if not self._has_begun:
            if len(received) < len(_PREFACE):
                return
            self._has_begun, at = True, len(_PREFACE)
        try:
            while len(received) - at >= _HEADER.size:
                high, low, kind, flags, number = _HEADER.unpack_from(received, at)
                end = at + _HEADER.size + (high << 16) + low
                if len(received) < end:
                    break
                payload = bytes(received[at + _HEADER.size : end])
                at = end
                self._handle(kind, flags, number, payload)
        except HPACKError:
            self._transport.close()
            return
        del received[:at]
        self.flush()

    def _handle(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        if kind == _HEADERS:
            payload = _without_padding(flags, payload)
            self._block = payload[5:] if flags & _PRIORITY else payload
        elif kind == _CONTINUATION:
            self._block += payload
        if kind in (_HEADERS, _CONTINUATION):
            if flags & _END_HEADERS:
                method = self._headers.method_of(self._block)
                self._calls[number] = _Call(self, number, self._server, method)
        elif kind == _DATA:
            self._take(flags, number, payload)
        elif kind == _RST_STREAM:
            if (call := self._calls.pop(number, None)) is not None:
                call.cancel()
        elif kind == _SETTINGS and not flags & _ACK:
            self._set(payload)
        elif kind == _PING and not flags & _ACK:
            self.send(_PING, _ACK, 0, payload)
        elif kind == _WINDOW_UPDATE:
            self._widen(number, *_NUMBER.unpack(payload))

    def _take(self, flags: int, number: int, payload: bytes) -> None:
        self._taken += len(payload)
        if self._taken >= _ROOM // 2:
            self.send(_WINDOW_UPDATE, 0, 0, _NUMBER.pack(self._taken))
            self._taken = 0
        # It may have been given up.
        if (call := self._calls.get(number)) is not None:
            call.body += _without_padding(flags, payload)
            if flags & _END_STREAM:
                call.answer()

    def _set(self, payload: bytes) -> None:
        for setting, value in _SETTING.iter_unpack(payload):
            if setting == _INITIAL_WINDOW_SIZE:
                for call in self._calls.values():
                    call.window += value - self.stream_window
                self.stream_window = value
            elif setting == _MAX_FRAME_SIZE:
                self.frame_max = value
        self.send(_SETTINGS, _ACK, 0, b"")
        self._go_on()

    def _widen(self, number: int, more: int) -> None:
        if number == 0:
            self.window += more
            self._go_on()
        elif (call := self._calls.get(number)) is not None:
            call.window += more
            call.go_on()

    def _go_on(self) -> None:
        for call in list(self._calls.values()):
            call.go_on()

    def send(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        """Send a frame with the next flush()."""
        size = len(payload)
        self._out.append(_HEADER.pack(size >> 16, size & 0xFFFF, kind, flags, number))
        self._out.append(payload)

    def end(self, number: int, status: int, details: str) -> None:
        """End a call."""
        self._calls.pop(number, None)
        self.send(_HEADERS, _END_HEADERS | _END_STREAM, number, _trailers(status, quote(details)))

    def flush(self) -> None:
        """Hand over what is to be sent."""
        if self._out:
            self._transport.write(b"".join(self._out))
            self._out.clear()


class _Call:
    """One call, whose answer is sent within the windows that the client has opened.

    Attributes:
        body: the request as it comes.
        window: how many bytes the client takes of this call.
    """

    def __init__(
        self, connection: _Connection, number: int, server: GrpcServer, method: str
    ) -> None:
        self.body = bytearray()
        self.window = connection.stream_window
        self._connection = connection
        self._number = number
        self._server = server
        self._method = method
        self._ready: Iterator[Ready] = iter(())
        self._left = b""
        self._next_turn: asyncio.Handle | None = None

    def answer(self) -> None:
        """Begin to answer: the request is there."""
        self._connection.send(_HEADERS, _END_HEADERS, self._number, _HEAD)
        self._ready = self._answers(bytes(self.body[5:]))
        self._advance()

    def _answers(self, request: bytes) -> Iterator[Ready]:
        if self._method in self._server.streams:
            yield from self._server.streams[self._method](request)
        elif self._method in self._server.unary:
            yield [self._server.unary[self._method](request)]
        else:
            raise AbortError(grpc.StatusCode.UNIMPLEMENTED, "")

    def go_on(self) -> None:
        """Send more: there is room, or may be."""
        if self._left:
            self._advance()

    def cancel(self) -> None:
        """Answer no more."""
        if self._next_turn is not None:
            self._next_turn.cancel()

    def _turn(self) -> None:
        self._advance()
        self._connection.flush()

    def _advance(self) -> None:
        """Send what is ready."""
        loop, sent = asyncio.get_running_loop(), 0
        try:
            while True:
                sent += self._send()
                if self._left:
                    # Until there is room.
                    return
                if sent >= _TURN_BYTES:
                    self._next_turn = loop.call_soon(self._turn)
                    return
                item = next(self._ready, None)
                if item is None:
                    self._connection.end(self._number, grpc.StatusCode.OK.value[0], "")
                    return
                if not isinstance(item, int):
                    self._left = _framed(item)
                elif (delay_s := item / 1e6 - time.time()) > 0:
                    self._next_turn = loop.call_later(delay_s, self._turn)
                    return
        except AbortError as error:
            self._connection.end(self._number, error.code.value[0], error.details)

    def _send(self) -> int:
        """Send what there is room for, and return how many bytes."""
        connection, at = self._connection, 0
        while at < len(self._left):
            size = min(connection.window, self.window, connection.frame_max, len(self._left) - at)
            if size <= 0:
                break
            connection.send(_DATA, 0, self._number, self._left[at : at + size])
            connection.window -= size
            self.window -= size
            at += size
        self._left = self._left[at:]
        return at


class _RequestHeaders:
    """The headers of a connection's requests; most requests have the same ones."""

    def __init__(self) -> None:
        self._decoder = Decoder()
        # By their bytes, as long as the table that these point into is the same.
        self._methods: dict[bytes, str] = {}

    def method_of(self, block: bytes) -> str:
        """Return the name of the method that is called."""
        if block not in self._methods:
            before = list(self._decoder.header_table.dynamic_entries)
            path = dict(self._decoder.decode(block, raw=True))[b":path"]
            method = path.decode().rpartition("/")[2]
            if before != list(self._decoder.header_table.dynamic_entries):
                self._methods.clear()
                return method
            self._methods[block] = method
        return self._methods[block]


def _without_padding(flags: int, payload: bytes) -> bytes:
    return payload[1 : len(payload) - payload[0]] if flags & _PADDED else payload


@lru_cache
def _trailers(status: int, details: str) -> bytes:
    return _block({"grpc-status": str(status), "grpc-message": details})


def _block(headers: dict[str, str]) -> bytes:
    """Return headers of which the client keeps none in its table."""
    return bytes(Encoder().encode([NeverIndexedHeaderTuple(*pair) for pair in headers.items()]))


_HEAD: Final = _block({":status": "200", "content-type": "application/grpc"})


def _framed(messages: list[bytes]) -> bytes:
    return b"".join([b"\0" + struct.pack(">I", len(message)) + message for message in messages])


@contextmanager
def in_a_process(make: Callable[[], GrpcServer]) -> Iterator[str]:
    """A server that is made and runs in a process of its own; its host."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(make, theirs), daemon=True)
    process.start()
    # Or nobody would notice that the process has died.
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join(10)
        process.kill()


def _serve(make: Callable[[], GrpcServer], pipe: Any) -> None:
    with make() as server:
        pipe.send(server.host)
        pipe.recv()
