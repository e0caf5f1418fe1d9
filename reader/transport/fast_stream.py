"""The messages of a running call, with less work a message than grpcio's own iterator.

Where one row comes in a message, most of a record's cost is grpcio's bookkeeping around it: locks
and lists for events of any kind, while all but the first and the last event are a message. Here a
message is taken as it is, and every other event is left to grpcio, which knows what it means: the
end, an error, a cancellation. That needs names that grpcio does not promise to keep; where a call
lacks one of them, its own iterator is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Any, Final

try:
    from grpc._channel import _handle_event, _SingleThreadedRendezvous
    from grpc._cython.cygrpc import OperationType, ReceiveMessageOperation

    _KNOWN: tuple[type, ...] = (_SingleThreadedRendezvous,)
    _MESSAGE: Final = OperationType.receive_message
except (AttributeError, ImportError):
    _KNOWN = ()

_NEEDED: Final = attrgetter(
    "_next_response",
    "_response_deserializer",
    "_call.operate",
    "_call.next_event",
    "_state.code",
    "_state.condition",
    "_state.due",
)


def messages_of(call: Iterable[bytes]) -> Iterator[bytes]:
    """The messages of a call, as iter(call) gives them, with its errors.

    Args:
        call: of a stub without a deserializer. Only one thread may take its messages; any may
            cancel it.
    """
    return _received(call) if is_known(call) else iter(call)


def is_known(call: Any) -> bool:
    """True where the call is made as this module knows it, and leaves messages as they are."""
    try:
        _NEEDED(call)
    except AttributeError:
        return False
    return call._response_deserializer is None and isinstance(call, _KNOWN)


def _received(call: Any) -> Iterator[bytes]:
    state, operate, next_event = call._state, call._call.operate, call._call.next_event
    due = state.due
    while state.code is None:
        # First, so that an event never comes for what is not due.
        due.add(_MESSAGE)
        if not operate((ReceiveMessageOperation(0),), None):
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
