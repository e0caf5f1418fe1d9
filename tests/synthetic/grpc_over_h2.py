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
from contextlib import contextmanager, suppress
from typing import Any, Final, Self
from urllib.parse import quote

import grpc
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import (
    DataReceived,
    RequestReceived,
    StreamEnded,
    StreamReset,
    WindowUpdated,
)
from h2.exceptions import ProtocolError, StreamClosedError

# What a stream yields: messages that are ready, or the time to wait for, microseconds.
Ready = list[bytes] | int
Unary = Callable[[bytes], bytes]
Stream = Callable[[bytes], Iterator[Ready]]
_HEAD: Final = [(":status", "200"), ("content-type", "application/grpc")]


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
        running = asyncio.all_tasks() - {asyncio.current_task()}
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class _Connection(asyncio.Protocol):
    """One client's connection."""

    def __init__(self, server: GrpcServer) -> None:
        self._server = server
        self._h2 = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self._methods: dict[int, str] = {}
        self._bodies: dict[int, bytearray] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._room = asyncio.Event()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        for task in self._tasks.values():
            task.cancel()

    def data_received(self, data: bytes) -> None:
        try:
            events = self._h2.receive_data(data)
        except ProtocolError:
            self._transport.close()
            return
        for event in events:
            self._handle(event)
        self._flush()

    def _handle(self, event: Any) -> None:
        match event:
            case RequestReceived():
                headers: dict[Any, Any] = dict(event.headers)
                self._methods[event.stream_id] = headers[":path"].rsplit("/", 1)[1]
                self._bodies[event.stream_id] = bytearray()
            case DataReceived():
                self._bodies[event.stream_id] += event.data
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            case StreamEnded():
                number = event.stream_id
                task = asyncio.ensure_future(self._answer(number))
                self._tasks[number] = task
                task.add_done_callback(lambda _: self._tasks.pop(number, None))
            case StreamReset() if event.stream_id in self._tasks:
                self._tasks[event.stream_id].cancel()
            case WindowUpdated():
                self._room.set()

    async def _answer(self, number: int) -> None:
        method, body = self._methods.pop(number), bytes(self._bodies.pop(number)[5:])
        with suppress(StreamClosedError, ProtocolError):
            self._h2.send_headers(number, _HEAD)
            status, details = grpc.StatusCode.OK, ""
            try:
                if method in self._server.streams:
                    await self._stream(number, self._server.streams[method](body))
                elif method in self._server.unary:
                    await self._send(number, _framed([self._server.unary[method](body)]))
                else:
                    status = grpc.StatusCode.UNIMPLEMENTED
            except AbortError as error:
                status, details = error.code, error.details
            trailers = [("grpc-status", str(status.value[0])), ("grpc-message", quote(details))]
            self._h2.send_headers(number, trailers, end_stream=True)
            self._flush()

    async def _stream(self, number: int, ready: Iterator[Ready]) -> None:
        for item in ready:
            if isinstance(item, int):
                await asyncio.sleep(max(0.0, item / 1e6 - time.time()))
            else:
                await self._send(number, _framed(item))

    async def _send(self, number: int, data: bytes) -> None:
        """Within the windows that the client has opened."""
        at = 0
        while at < len(data):
            size = min(
                self._h2.local_flow_control_window(number),
                self._h2.max_outbound_frame_size,
                len(data) - at,
            )
            if size <= 0:
                self._room.clear()
                self._flush()
                await self._room.wait()
                continue
            self._h2.send_data(number, data[at : at + size])
            at += size
        self._flush()
        # Others have their turn.
        await asyncio.sleep(0)

    def _flush(self) -> None:
        if data := self._h2.data_to_send():
            self._transport.write(data)


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
