"""Spanner's clock without waiting: read now and then on a thread of its own.

The scheduler's planner asks Spanner itself, because it needs the exact time. The lag that people
see only needs the difference between the two clocks, and must be shown while Spanner is away, too.
"""

import threading
import time
from collections.abc import Callable
from typing import Final

from slackwater.reader.errors import ReaderError
from slackwater.timestamp import seconds_to_ns

_EVERY_S: Final = 15.0
# A slower answer says little about the difference: only the times of request and answer are known.
_ANSWER_S_MAX: Final = 1.0


class SpannerClock:
    """Spanner's clock, as this machine's and the difference that was measured last.

    Args:
        read_ns: asks Spanner; may take long, and raise a ReaderError.
        every_s: the time from one reading to the next.
        time_ns, monotonic_s: this machine's clocks.
    """

    def __init__(
        self,
        read_ns: Callable[[], int],
        *,
        every_s: float = _EVERY_S,
        time_ns: Callable[[], int] = time.time_ns,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_ns = read_ns
        self._every_s = every_s
        self._time_ns = time_ns
        self._monotonic_s = monotonic_s
        self._ahead_ns: int | None = None
        self._answered_s = monotonic_s()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Begin to read."""
        threading.Thread(target=self._run, name="spanner-clock", daemon=True).start()

    def stop(self) -> None:
        """Stop reading, without waiting for an answer that is outstanding."""
        self._stopped.set()

    def now_ns(self) -> int:
        """Return Spanner's clock in nanoseconds; this machine's before the first answer."""
        return self._time_ns() + (self._ahead_ns or 0)

    @property
    def silent_s(self) -> float | None:
        """The seconds for which Spanner has not answered; None while that is no longer than usual.

        Half of the time between two readings may pass before an answer counts as missing.
        """
        silent_s = self._monotonic_s() - self._answered_s
        return silent_s if silent_s > 1.5 * self._every_s else None

    def note_answer(self) -> None:
        """Note that Spanner has answered another caller, such as the tasks of an epoch."""
        self._answered_s = self._monotonic_s()

    def read(self) -> None:
        """Read Spanner's clock once.

        Raises:
            ReaderError: Spanner did not answer.
        """
        asked_s, asked_ns = self._monotonic_s(), self._time_ns()
        clock_ns = self._read_ns()
        self.note_answer()
        took_s = self._answered_s - asked_s
        if self._ahead_ns is None or took_s <= _ANSWER_S_MAX:
            self._ahead_ns = clock_ns - asked_ns - seconds_to_ns(took_s) // 2

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self.read()
            except ReaderError:
                # Reading has been tried for half a minute; silent_s says for how long.
                self._stopped.wait(1)
            else:
                self._stopped.wait(self._every_s)
