"""A gRPC call with one request and many answers, whose messages come in portions.

libcurl transfers it, and what gRPC adds to HTTP/2 is little: a prefix of five bytes for each
message, and a status in the trailers (gRPC's documentation, "gRPC over HTTP2"). grpcio receives a
message by an operation of its own. Where a message holds one row, that is most of a record's cost.
"""

import re
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Final, Protocol
from urllib.parse import unquote

import grpc
import pycurl

from slackwater.reader.transport.receive_loop import Loop
from slackwater.reader.transport.transfers import transfers

Metadata = Sequence[tuple[str, str]]

# Whether it is compressed, and its length.
_PREFIX: Final = struct.Struct(">BI")
_NOT_COMPRESSED: Final = (b"", b"\0")
# As many as libcurl hands on at once, of 16 kB at most, wait for a work that does something else.
_CHUNKS_MAX: Final = 128
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}
# gRPC's documentation, "HTTP to gRPC Status Code Mapping".
_OF_HTTP: Final = {
    400: grpc.StatusCode.INTERNAL,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED,
    **dict.fromkeys((429, 502, 503, 504), grpc.StatusCode.UNAVAILABLE),
}
# "gRPC over HTTP2", "Errors": of streams that were reset, by HTTP/2's codes in libcurl's text.
_OF_RESETS: Final = {
    "7": grpc.StatusCode.UNAVAILABLE,
    "8": grpc.StatusCode.CANCELLED,
    "11": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "12": grpc.StatusCode.PERMISSION_DENIED,
}
_RESET: Final = re.compile(r"HTTP/2 stream \d+ (?:was not closed cleanly|.*reset).*\(err (\d+)\)")
_CANCELLED: Final = (grpc.StatusCode.CANCELLED, "cancelled by the reader")

Status = tuple[grpc.StatusCode, str]


class CallError(grpc.RpcError):  # type: ignore[misc]
    """A call ended with another status than OK.

    Args:
        code: gRPC's.
        details: the server's message.
    """

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(f"{code.name}: {details}")
        self._code = code
        self._details = details

    def code(self) -> grpc.StatusCode:
        """Return the status code."""
        return self._code

    def details(self) -> str:
        """Return the status message."""
        return self._details


class Call(Protocol):
    """A running call, for the one thread or work that takes its messages.

    Attributes:
        last_s: when the last message came of those that are received together, by the monotonic
            clock.
    """

    last_s: float

    @property
    def waiting_since_s(self) -> float | None:
        """Since when it waits for the server, by the monotonic clock; None while it does not."""

    def portions(self, bytes_max: int, begins: bytes = b"") -> Iterator[list[bytes]]:
        """Yield serialized messages, several together; once for each call.

        Args:
            bytes_max: a portion ends with the arrival after which it has so many bytes.
            begins: if given, it ends with the message after which it has them, or with one that
                begins otherwise.

        Raises:
            grpc.RpcError: after all messages, if the call did not end with OK.
        """

    def arrivals(self) -> Iterator[list[bytes]]:
        """Yield messages, those together that have come at once; otherwise as portions()."""

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages; as portions()."""

    def cancel(self) -> None:
        """End the call early, from any thread; portions() then raises an error."""

    def close(self) -> None:
        """End the call, if it runs, and give up what it holds."""


class StreamCall:
    """A call that libcurl transfers.

    Args:
        handle: the request.
        loop: moves it; None if the caller's thread does, while it takes messages.
        give_back: takes the handle when the call has ended.
    """

    def __init__(
        self,
        handle: pycurl.Curl,
        loop: Loop | None,
        give_back: Callable[[pycurl.Curl], object],
    ) -> None:
        self.handle = handle
        self._loop = loop
        self._stack = ExitStack()
        self._give_back = give_back
        self._status: Status | None = None
        self._since_s: float | None = None
        self._waiter: object = None
        self._is_paused = False
        self.last_s = self._came_s = time.monotonic()
        self._chunks: list[bytes] = []
        self._headers: list[bytes] = []
        # In the main thread, libcurl adds without a step of Python's, in which a signal is lost.
        handle.setopt(pycurl.WRITEFUNCTION, self._add if loop else self._chunks.append)
        handle.setopt(pycurl.HEADERFUNCTION, self._headers.append)
        self._transfers = loop.transfers if loop else self._stack.enter_context(transfers())
        self._transfers.add(self)

    @property
    def waiting_since_s(self) -> float | None:
        """Since when it waits for the server, by the monotonic clock; None while it does not."""
        return self._since_s if self._loop is None or self._loop.is_waiting else None

    def leave_out(self, busy_s: float) -> None:
        """Do not count a time in which nobody looked as the server's silence."""
        if self._since_s is not None:
            # It may have begun to wait within that time.
            self._since_s = min(self._since_s + busy_s, time.monotonic())

    def portions(self, bytes_max: int, begins: bytes = b"") -> Iterator[list[bytes]]:
        """Yield messages, several together; see Call."""
        portion, room = list[bytes](), bytes_max
        try:
            for messages in self.arrivals():
                # To look at each message costs a tenth of reading it.
                together = [[message] for message in messages] if begins else [messages]
                for some in together:
                    portion += some
                    room -= sum(map(len, some))
                    if is_usual := some[0].startswith(begins):
                        self.last_s = self._came_s
                    if room <= 0 or not is_usual:
                        yield portion
                        portion, room = [], bytes_max
        except CallError:
            if portion:
                yield portion
            raise
        if portion:
            yield portion

    def arrivals(self) -> Iterator[list[bytes]]:
        """Yield messages as they come; see Call."""
        held, missing = list[bytes](), 0
        while self._wait():
            held += (taken := self._taken())
            missing -= sum(map(len, taken))
            if missing > 0:
                continue
            messages, rest, missing = split(b"".join(held))
            held = [rest] if rest else []
            if rest[:1] not in _NOT_COMPRESSED:
                self._refuse()
            if messages:
                yield messages
        code, details = self._status or _CANCELLED
        if code is not grpc.StatusCode.OK:
            raise CallError(code, details)
        if held:
            raise CallError(grpc.StatusCode.INTERNAL, "the call ended within a message")

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages; see Call."""
        for portion in self.portions(0):
            yield from portion

    def cancel(self) -> None:
        """End the call early; see Call."""
        self._transfers.end_soon(self, is_silent=self.waiting_since_s is not None)

    def close(self) -> None:
        """End the call, if it runs; see Call."""
        if self._status is None:
            self._transfers.remove(self)
            self._end(_CANCELLED)
        self._stack.close()

    def _add(self, data: bytes) -> None:
        self._chunks.append(data)
        self._transfers.touch(self)

    def notice(self) -> None:
        """Go on with what has come; see Transfer."""
        if self._waiter is not None:
            self._since_s = self._came_s = time.monotonic()
            self._resume()
        elif len(self._chunks) > _CHUNKS_MAX and not self._is_paused:
            self._is_paused = True
            self.handle.pause(pycurl.PAUSE_RECV)

    def end(self, error: int, text: str) -> None:
        """End with what libcurl says; see Transfer."""
        http = self.handle.getinfo(pycurl.RESPONSE_CODE)
        self._end(status_of(error, text, http, self._headers))
        if self._waiter is not None:
            self._resume()

    def _end(self, status: Status) -> None:
        self._status = status
        self._give_back(self.handle)

    def _refuse(self) -> None:
        """End a call of which no more can be read, unless it is another server's page."""
        if self._status is None and self.handle.getinfo(pycurl.RESPONSE_CODE) == 200:
            self._transfers.remove(self)
            self._end((grpc.StatusCode.INTERNAL, "a message came compressed, or it is none"))

    def _resume(self) -> None:
        waiter, self._waiter = self._waiter, None
        if self._loop is not None:
            self._loop.resume(waiter)

    def _wait(self) -> bool:
        """Wait until something has come; return False if no more will come."""
        self._since_s = time.monotonic()
        try:
            while not self._chunks and self._status is None:
                if self._loop is None:
                    self._transfers.move()
                else:
                    self._waiter = self._loop.current_work()
                    self._loop.go_on()
        finally:
            self._since_s = None
        if self._status is not None:
            self._stack.close()
        elif self._loop is None:
            self._came_s = time.monotonic()
        return bool(self._chunks)

    def _taken(self) -> list[bytes]:
        taken = self._chunks[:]
        self._chunks.clear()
        if self._is_paused and self._status is None:
            self._is_paused = False
            self.handle.pause(pycurl.PAUSE_CONT)
        return taken


def split(data: bytes) -> tuple[list[bytes], bytes, int]:
    """Return the messages in what has come, the rest, and how many bytes of the next are missing.

    The rest may be what can't be read: it begins with another byte than 0 then.
    """
    messages, size, begin, missing = list[bytes](), len(data), 0, 0
    while (first := begin + _PREFIX.size) <= size:
        is_compressed, length = _PREFIX.unpack_from(data, begin)
        if is_compressed:
            break
        end = first + length
        if end > size:
            missing = end - size
            break
        messages.append(data[first:end])
        begin = end
    return messages, data[begin:], missing


def status_of(error: int, text: str, http: int, headers: Sequence[bytes]) -> Status:
    """Return the status with which a call has ended.

    Args:
        error: libcurl's code; 0 for none.
        text: libcurl's message.
        http: the HTTP status; 0 without an answer.
        headers: the lines of headers and trailers.
    """
    lines = (line.decode("latin-1").strip().partition(": ") for line in headers)
    fields = {name: value for name, _, value in lines}
    number = fields.get("grpc-status", "")
    if number.isdecimal():
        code = _CODES.get(int(number), grpc.StatusCode.UNKNOWN)
        return code, unquote(fields.get("grpc-message", ""))
    if error == pycurl.E_ABORTED_BY_CALLBACK:
        return _CANCELLED
    if error == pycurl.E_OPERATION_TIMEDOUT:
        return grpc.StatusCode.DEADLINE_EXCEEDED, text
    if error:
        reset = _RESET.search(text)
        return _OF_RESETS.get(reset[1] if reset else "7", grpc.StatusCode.INTERNAL), text
    if http != 200:
        return _OF_HTTP.get(http, grpc.StatusCode.UNKNOWN), f"the server answered with HTTP {http}"
    return grpc.StatusCode.UNKNOWN, "the server answered without a status of gRPC's"
