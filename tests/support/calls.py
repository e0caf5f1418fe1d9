"""A call whose messages are an iterator's."""

import time
from collections.abc import Callable, Iterator

from slackwater.reader.transport.grpc_errors import CALL_ERRORS


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

    def arrivals(self) -> Iterator[list[bytes]]:
        """Yield messages as they come; see Call."""
        return self.portions(0)

    def __iter__(self) -> Iterator[bytes]:
        """Iterate over the messages; see Call."""
        yield from self._messages

    def cancel(self) -> None:
        """End the call early; see Call."""
        self._cancel()

    close = cancel
