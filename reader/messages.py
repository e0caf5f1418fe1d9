"""The messages of a running call, with less work a message than grpcio's own iterator.

Where one row comes in a message, most of a record's cost is grpcio's bookkeeping around it: locks
and lists for events of any kind, while all but the first and the last event are a message. Here a
message is taken as it is, and every other event is left to grpcio, which knows what it means: the
end, an error, a cancellation. That needs names that grpcio does not promise to keep; where a call
lacks one of them, its own iterator is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, cast

try:
    from grpc._channel import _handle_event, _SingleThreadedRendezvous
    from grpc._cython.cygrpc import OperationType, ReceiveMessageOperation

    _KNOWN: tuple[type, ...] = (_SingleThreadedRendezvous,)
    _MESSAGE: Final = OperationType.receive_message
except (AttributeError, ImportError):
    _KNOWN = ()

_OF_STATE: Final = ("code", "condition", "due")
_OF_CALL: Final = ("operate", "next_event")


def messages_of(call: Iterator[bytes]) -> Iterator[bytes]:
    """The messages of a call, as iter(call) gives them, with its errors.

    Args:
        call: of a stub without a deserializer. Only one thread may take its messages; any may
            cancel it.
    """
    return _received(call) if is_known(call) else iter(call)


def is_known(call: object) -> bool:
    """True where the call is made as this module knows it, and leaves messages as they are."""
    return (
        isinstance(call, _KNOWN)
        and hasattr(call, "_next_response")
        and getattr(call, "_response_deserializer", messages_of) is None
        and all(hasattr(getattr(call, "_state", None), name) for name in _OF_STATE)
        and all(hasattr(getattr(call, "_call", None), name) for name in _OF_CALL)
    )


def _received(given: object) -> Iterator[bytes]:
    call = cast(Any, given)
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
