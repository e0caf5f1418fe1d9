"""The messages of a running call, with less work for each than grpcio's own iterator does.

This is the only module that adapts to grpcio's internals: it uses names that grpcio does not
promise to keep (grpc._channel, grpc._cython, attributes of a call) and an experimental channel
option. With a grpcio that lacks one of the names, the call's own iterator is used. When grpcio is
upgraded, tests/unit/reader/test_fast_stream.py says whether this module still applies.

Where a message holds one row, most of a record's cost is grpcio's bookkeeping around the message:
locks and lists for events of any kind, although all events but the first and the last are a
message. Here a message is taken directly, and every other event (the end, an error, a
cancellation) is left to grpcio, which knows what it means.
"""

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final, Protocol

import grpc

try:
    from grpc._channel import _handle_event, _SingleThreadedRendezvous
    from grpc._cython.cygrpc import OperationType, ReceiveMessageOperation

    _SUPPORTED_CALLS: tuple[type, ...] = (_SingleThreadedRendezvous,)
    _MESSAGE: Final = OperationType.receive_message
except (AttributeError, ImportError):
    _SUPPORTED_CALLS = ()

# The caller's thread drives its stream itself: a quarter of the default's cost for each message.
CHANNEL_OPTIONS: Final = ((grpc.experimental.ChannelOptions.SingleThreadedUnaryStream, 1),)

_required_attributes: Final = attrgetter(
    "_next_response",
    "_response_deserializer",
    "_call.operate",
    "_call.next_event",
    "_state.code",
    "_state.condition",
    "_state.due",
)


class Call(Protocol):
    """A running streaming call: its messages, and how to end it early."""

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the serialized messages as they come."""

    def cancel(self) -> bool:
        """End the call; its iterator then raises an error."""


def fast_messages(call: Iterable[bytes]) -> Iterator[bytes]:
    """Return the messages of a call, the same as iter(call) gives, with the same errors.

    Args:
        call: of a stub without a deserializer, on a channel with CHANNEL_OPTIONS. Only one thread
            may take its messages; any thread may cancel it.
    """
    return _fast_messages(call) if is_supported(call) else iter(call)


def is_supported(call: Any) -> bool:
    """Return True if a call has the internals that this module uses, and no deserializer."""
    try:
        _required_attributes(call)
    except AttributeError:
        return False
    return call._response_deserializer is None and isinstance(call, _SUPPORTED_CALLS)


def _fast_messages(call: Any) -> Iterator[bytes]:
    state, operate, next_event = call._state, call._call.operate, call._call.next_event
    due = state.due
    # It can be started again as soon as its message was taken.
    receive = (ReceiveMessageOperation(0),)
    while state.code is None:
        # Before the operation starts, so that no event comes for an operation that is not due.
        due.add(_MESSAGE)
        if not operate(receive, None):
            due.discard(_MESSAGE)
            break
        event = next_event()
        operations = event.batch_operations
        if len(operations) == 1 and operations[0].type() == _MESSAGE:
            message = operations[0].message()
            if message is not None:
                due.remove(_MESSAGE)
                yield message
                continue
        with state.condition:
            callbacks = _handle_event(event, state, None)
        for callback in callbacks:
            callback()
        try:
            message = call._next_response()
        except StopIteration:
            return
        yield message
    yield from call
