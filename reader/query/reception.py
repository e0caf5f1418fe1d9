"""The messages of a stream, in portions of those that have already arrived."""

import time
from collections.abc import Iterator

from slackwater.reader.query.receive_turns import ALREADY_THERE_S, RECEIVE_LOCK, ReceiveTurn
from slackwater.reader.transport.grpc_errors import CALL_ERRORS
from slackwater.timestamp import seconds_to_ms


class Reception:
    """The receiving of one stream after the other, by one thread.

    Attributes:
        waiting_since_s: since when it waits for the server, by the monotonic clock; None while
            messages are used.
        last_s: when the last message came of those that are received together.
    """

    __slots__ = ("last_s", "waiting_since_s")

    def __init__(self) -> None:
        self.waiting_since_s: float | None = None
        self.last_s = time.monotonic()

    @property
    def silent_ms(self) -> int:
        """The time for which the server has been silent, milliseconds; 0 otherwise."""
        since_s = self.waiting_since_s
        return 0 if since_s is None else seconds_to_ms(time.monotonic() - since_s)

    def portions(
        self, messages: Iterator[bytes], bytes_max: int, begins: bytes = b""
    ) -> Iterator[list[bytes]]:
        """Yield messages, several together.

        Args:
            messages: of a call.
            bytes_max: a portion ends when it has so many bytes.
            begins: it also ends with a message that begins otherwise.

        Raises:
            what the call's iterator raises, after all messages.
        """
        portion, room, turn = list[bytes](), bytes_max, ReceiveTurn()
        try:
            self.waiting_since_s = since_s = time.monotonic()
            for message in messages:
                portion.append(message)
                room -= len(message)
                now_s = time.monotonic()
                if now_s - since_s > ALREADY_THERE_S:
                    turn.release()
                elif turn.is_held:
                    RECEIVE_LOCK.last_received_s = now_s
                else:
                    self.waiting_since_s = None
                    if turn.acquire(now_s):
                        now_s = time.monotonic()
                if is_usual := message.startswith(begins):
                    self.last_s = now_s
                if room <= 0 or not is_usual:
                    self.waiting_since_s = None
                    yield portion
                    turn.charge(bytes_max - room)
                    portion, room = [], bytes_max
                    now_s = time.monotonic()
                self.waiting_since_s = since_s = now_s
        except CALL_ERRORS:
            self.waiting_since_s = None
            turn.release()
            if portion:
                yield portion
            raise
        finally:
            self.waiting_since_s = None
            turn.release()
        if portion:
            yield portion
