"""A streaming call, whose messages come in portions of those that are used together.

This is the only module that adapts to grpcio's internals: it uses names that grpcio does not
promise to keep (grpc._cython, attributes of a channel). With a grpcio that lacks one of them,
grpcio's own iterator is used, and each stream needs a thread. When grpcio is upgraded,
tests/unit/reader/test_stream_call.py says whether this module still applies.

Where a message holds one row, most of a record's cost is grpcio's bookkeeping around the message:
locks and lists for events of any kind, and an operation for each thing that a call begins with.
Here they begin with one, and a message is taken as it comes. In a ReceiveLoop, one thread receives
the messages of many calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, Protocol

import grpc

from slackwater.reader.transport.grpc_errors import CALL_ERRORS
from slackwater.reader.transport.receive_loop import ReceiveLoop

try:
    from grpc._cython import cygrpc

    _MESSAGE: Final = cygrpc.OperationType.receive_message
    _STATUS: Final = cygrpc.OperationType.receive_status_on_client
    _Receive = cygrpc.ReceiveMessageOperation
    attrgetter("integrated_call", "segregated_call", "next_call_event")(cygrpc.Channel)
    IS_SUPPORTED = True
except (AttributeError, ImportError):
    IS_SUPPORTED = False

Metadata = Sequence[tuple[str, str]]

_NO_FLAGS: Final = 0
_CODES: Final = {code.value[0]: code for code in grpc.StatusCode}


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
            bytes_max: a portion ends when it has so many bytes.
            begins: it also ends with a message that begins otherwise.

        Raises:
            grpc.RpcError: after all messages, if the call did not end with OK.
        """

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages; as portions()."""

    def cancel(self) -> None:
        """End the call early, from any thread; portions() then raises an error."""

    def close(self) -> None:
        """End the call, if it runs, and give up what it holds."""


def start_call(
    channel: grpc.Channel,
    loop: ReceiveLoop | None,
    method: str,
    request: bytes,
    metadata: Metadata,
    seconds_max: float | None = None,
) -> Call:
    """Start a call of a method with one request and many answers.

    Args:
        channel: to the server.
        loop: waits for the channel's events; None if the caller's thread waits for the call.
        method: its full name.
        request: the serialized message.
        metadata: of the call.
        seconds_max: after which it fails.
    """
    if IS_SUPPORTED:
        return _StreamCall(channel, loop, method, request, metadata, seconds_max)
    call = channel.unary_stream(method)(request, seconds_max, metadata)
    return IteratedCall(call, call.cancel)


class _StreamCall:
    __slots__ = (
        "_begins",
        "_call",
        "_due",
        "_is_full",
        "_loop",
        "_portion",
        "_receive",
        "_room",
        "_since_s",
        "_status",
        "_waiter",
        "last_s",
    )

    def __init__(
        self,
        channel: Any,
        loop: ReceiveLoop | None,
        method: str,
        request: bytes,
        metadata: Metadata,
        seconds_max: float | None,
    ) -> None:
        self._portion: list[bytes] = []
        self._room = 0
        self._begins = b""
        self._is_full = False
        self._since_s: float | None = None
        self._status: tuple[int, str] = (grpc.StatusCode.UNKNOWN.value[0], "")
        self._waiter: object = None
        self.last_s = time.monotonic()
        self._loop = loop
        # It can be started again as soon as its message was taken, but not for two calls.
        self._receive = (_Receive(_NO_FLAGS),)
        batches = (
            (
                cygrpc.SendInitialMetadataOperation(metadata, _NO_FLAGS),
                cygrpc.SendMessageOperation(request, _NO_FLAGS),
                cygrpc.SendCloseFromClientOperation(_NO_FLAGS),
                cygrpc.ReceiveInitialMetadataOperation(_NO_FLAGS),
                *self._receive,
            ),
            (cygrpc.ReceiveStatusOnClientOperation(_NO_FLAGS),),
        )
        # Batches of operations of which no event has come.
        self._due = len(batches)
        core = channel._channel
        start = core.segregated_call if loop is None else core.integrated_call
        self._call = start(
            cygrpc.PropagationConstants.GRPC_PROPAGATE_DEFAULTS,
            method.encode(),
            None,
            None if seconds_max is None else time.time() + seconds_max,
            metadata,
            None,
            tuple((batch, None if loop is None else self._on_event) for batch in batches),
            cygrpc.build_census_context(),
            None,
        )
        if loop is not None:
            loop.add(self)

    @property
    def waiting_since_s(self) -> float | None:
        """Since when it waits for the server, by the monotonic clock; None while it does not."""
        return self._since_s if self._loop is None or self._loop.is_waiting else None

    def leave_out(self, busy_s: float) -> None:
        """Do not count a time in which its loop did not look as the server's silence."""
        if self._since_s is not None:
            self._since_s += busy_s

    def nudge(self, tag: object) -> bool:
        """Have an event with a tag come on the channel; return whether the call still can."""
        return bool(self._call.operate((), tag))

    def portions(self, bytes_max: int, begins: bytes = b"") -> Iterator[list[bytes]]:
        """Yield messages, several together; see Call."""
        self._begins, self._room = begins, bytes_max
        while True:
            self._since_s = time.monotonic()
            try:
                self._wait()
            finally:
                self._since_s = None
            portion, self._portion = self._portion, []
            if portion:
                yield portion
            if not self._due:
                break
            self._is_full, self._room = False, bytes_max
            self._start_receiving()
        code, details = self._status
        if code:
            raise CallError(_CODES.get(code, grpc.StatusCode.UNKNOWN), details)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages; see Call."""
        for portion in self.portions(0):
            yield from portion

    def cancel(self) -> None:
        """End the call early; see Call."""
        self._call.cancel(grpc.StatusCode.CANCELLED.value[0], "cancelled by the reader")

    def close(self) -> None:
        """End the call, if it runs; see Call."""
        if not self._due:
            return
        self._room = 0
        self.cancel()
        if self._loop is None:
            while self._due:
                self._on_event(self._next_event())

    def _next_event(self) -> Any:
        try:
            return self._call.next_event()
        except BaseException:
            # A signal's: grpcio has given the call up, and no event may be asked for again.
            self._due = 0
            raise

    def _wait(self) -> None:
        """Receive until a portion is full, or the call has ended."""
        while self._due and not self._is_full:
            if self._loop is None:
                self._on_event(self._next_event())
            else:
                self._waiter = self._loop.current_work()
                self._loop.go_on()

    def _on_event(self, event: Any) -> None:
        """Take an event of the call."""
        self._due -= 1
        try:
            for operation in event.batch_operations:
                kind = operation.type()
                if kind == _MESSAGE:
                    message = operation.message()
                    if message is not None:
                        self._add(message)
                elif kind == _STATUS:
                    self._status = operation.code(), operation.details()
        finally:
            if self._loop is not None:
                self._tell(self._loop)

    def _tell(self, loop: ReceiveLoop) -> None:
        """Tell the loop if a portion is there, and if no event is to come."""
        if self._waiter is not None and (self._is_full or not self._due):
            waiter, self._waiter = self._waiter, None
            loop.resume(waiter)
        if not self._due:
            loop.remove(self)

    def _add(self, message: bytes) -> None:
        self._portion.append(message)
        self._room -= len(message)
        now_s = time.monotonic()
        if is_usual := message.startswith(self._begins):
            self.last_s = now_s
        if is_usual and self._room > 0:
            self._since_s = now_s
            self._start_receiving()
        else:
            self._is_full = True

    def _start_receiving(self) -> None:
        self._due += 1
        if not self._call.operate(self._receive, None if self._loop is None else self._on_event):
            self._due -= 1


class IteratedCall:
    """A call that is read by its own iterator, as grpcio's are.

    Args:
        messages: of the call.
        cancel: ends it early.
    """

    def __init__(self, messages: Iterator[bytes], cancel: Callable[[], object]) -> None:
        self._messages = messages
        self._cancel = cancel
        self.waiting_since_s: float | None = None
        self.last_s = time.monotonic()

    def portions(self, bytes_max: int, begins: bytes = b"") -> Iterator[list[bytes]]:
        """Yield messages, several together; see Call."""
        portion, room = list[bytes](), bytes_max
        try:
            self.waiting_since_s = time.monotonic()
            for message in self._messages:
                portion.append(message)
                room -= len(message)
                if is_usual := message.startswith(begins):
                    self.last_s = time.monotonic()
                if room <= 0 or not is_usual:
                    self.waiting_since_s = None
                    yield portion
                    portion, room = [], bytes_max
                self.waiting_since_s = time.monotonic()
        except CALL_ERRORS:
            self.waiting_since_s = None
            if portion:
                yield portion
            raise
        finally:
            self.waiting_since_s = None
        if portion:
            yield portion

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages; see Call."""
        yield from self._messages

    def cancel(self) -> None:
        """End the call early; see Call."""
        self._cancel()

    close = cancel
