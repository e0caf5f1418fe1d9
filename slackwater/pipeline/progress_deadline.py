"""The deadline for an epoch, or a scan, that makes no progress any more.

Its own duration does not matter, only the time without any change: no record read, no file written,
no task finished.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import structlog

_log = structlog.get_logger("slackwater.pipeline.progress_deadline")

_CHECKS: Final = 20
_EVERY_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """The time for which nothing has changed.

    Attributes:
        sign: the last sign of progress; None if there was nothing to wait for.
        since_s: when it was first read, by a clock that never goes back.
    """

    sign: Hashable | None
    since_s: float

    def seen(self, sign: Hashable | None, now_s: float) -> Standstill:
        """Return the standstill after the sign was read again."""
        return self if sign is not None and sign == self.sign else Standstill(sign, now_s)

    def is_over(self, now_s: float, deadline_s: float) -> bool:
        """Return True if the deadline has passed, even if reading the sign never ends."""
        return now_s - self.since_s >= deadline_s


class ProgressDeadline:
    """A watch for progress in threads of its own, as long as its context is open.

    Args:
        read_sign: returns something that differs whenever there was progress, or None if there is
            nothing to wait for. It may hang, which is not progress either.
        deadline_s: the seconds without progress that are too many.
        on_standstill: is called once, with these seconds.
        monotonic_s: a clock that never goes back.
    """

    def __init__(
        self,
        read_sign: Callable[[], Hashable | None],
        deadline_s: float,
        on_standstill: Callable[[float], None],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read_sign = read_sign
        self._deadline_s = deadline_s
        self._on_standstill = on_standstill
        self._monotonic_s = monotonic_s
        self._standstill = Standstill(None, monotonic_s())
        self._checking: threading.Thread | None = None
        self._stopped = threading.Event()

    def __enter__(self) -> ProgressDeadline:
        threading.Thread(target=self._run, name="progress", daemon=True).start()
        return self

    def __exit__(
        self,
        error_class: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(self._deadline_s / _CHECKS, _EVERY_S_MAX)):
            if self._checking is None or not self._checking.is_alive():
                self._checking = threading.Thread(target=self.check, name="progress", daemon=True)
                self._checking.start()
            if self._standstill.is_over(self._monotonic_s(), self._deadline_s):
                self._on_standstill(self._deadline_s)
                return

    def check(self) -> None:
        """Read the sign of progress once."""
        try:
            sign = self._read_sign()
        except Exception as error:  # noqa: BLE001 - the epoch itself fails by it, too
            _log.debug("can't look for progress", error=repr(error))
        else:
            self._standstill = self._standstill.seen(sign, self._monotonic_s())
