"""Calls that break, end without a word, fall silent, or stop in the middle of a change.

Replication that stands still is in the history: see its stalls.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from typing import Final

import grpc

from tests.synthetic.bigtable.messages import ReadResponse
from tests.synthetic.grpc_over_h2 import AbortError, Ready

CODES: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,
)


class Fault(Enum):
    """An answer's fault."""

    # It ends with an error after some messages, or before any.
    BREAK = auto()
    # It ends OK where a CloseStream should come.
    LOST_CLOSE = auto()
    # Nothing more comes, no heartbeat either; much later it breaks.
    SILENCE = auto()
    # It ends with an error after the first part of a change that has several.
    HALF = auto()


class Faults:
    """Disturbs some of the calls.

    Args:
        seed: of the choices.
        share: of the calls that are disturbed.
        kinds: what may happen; one that is listed twice is likelier.
        messages_max: how many may come before.
        silence_us: how long a silence lasts.

    Attributes:
        counts: what has happened.
    """

    def __init__(
        self,
        seed: int,
        share: float = 0.3,
        *,
        kinds: Sequence[Fault] = tuple(Fault),
        messages_max: int = 30,
        silence_us: int = 60_000_000,
    ) -> None:
        self._choose = random.Random(seed)
        self._share = share
        self._kinds = kinds
        self._messages_max = messages_max
        self._silence_us = silence_us
        self.counts = Counter[Fault]()

    def disturb(self, ready: Iterator[Ready], clock_us: Callable[[], int]) -> Iterator[Ready]:
        """Return the answer that the client gets."""
        if self._choose.random() >= self._share:
            yield from ready
            return
        fault = self._choose.choice(self._kinds)
        left = self._choose.randint(0, self._messages_max)
        for item in ready:
            messages = [] if isinstance(item, int) else item
            struck = _struck(fault, messages, left)
            if struck is None:
                left -= len(messages)
                yield item
                continue
            self.counts[fault] += 1
            if struck:
                yield messages[:struck]
            if fault is Fault.LOST_CLOSE:
                return
            code = self._choose.choice(CODES)
            if fault is Fault.SILENCE:
                code = grpc.StatusCode.UNAVAILABLE
                yield clock_us() + self._silence_us
            raise AbortError(code, f"A fault: {fault.name}.")


def _struck(fault: Fault, messages: Sequence[bytes], left: int) -> int | None:
    """Return how many messages still come before the fault strikes; None if all do.

    Args:
        fault: the answer's.
        messages: the next ones.
        left: how many may come before it.
    """
    if fault in {Fault.BREAK, Fault.SILENCE}:
        return left if left <= len(messages) else None
    for i, message in enumerate(map(ReadResponse.FromString, messages)):
        if fault is Fault.LOST_CLOSE and message.HasField("close_stream"):
            return i
        if fault is Fault.HALF and message.data_change.type_ and not message.data_change.done:
            return i + 1
    return None
