"""Notices that an epoch, or a scan, makes no progress any more.

Not how long it takes counts, but for how long nothing has changed of what it does: no record read,
no file written, no task finished.
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

_LOOKS: Final = 20
_EVERY_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Standstill:
    """For how long nothing has changed.

    Attributes:
        sign: what was seen last; None if there was nothing to wait for.
        since_s: when it was seen first, by a clock that never goes back.
    """

    sign: Hashable | None
    since_s: float

    def seen(self, sign: Hashable | None, now_s: float) -> Standstill:
        """Return what follows from another look."""
        return self if sign is not None and sign == self.sign else Standstill(sign, now_s)

    def is_over(self, now_s: float, deadline_s: float) -> bool:
        """Return True if the deadline has passed; a look that never ends shows nothing new."""
        return now_s - self.since_s >= deadline_s


class ProgressDeadline:
    """Looks for progress in threads of its own, as long as its context is open.

    Args:
        look: returns something that differs whenever there was progress, or None if there is
            nothing to wait for. It may hang: that is no progress either.
        deadline_s: the seconds without progress that are too many.
        on_standstill: is called once, with these seconds.
        monotonic_s: a clock that never goes back.
    """

    def __init__(
        self,
        look: Callable[[], Hashable | None],
        deadline_s: float,
        on_standstill: Callable[[float], None],
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look = look
        self._deadline_s = deadline_s
        self._on_standstill = on_standstill
        self._monotonic_s = monotonic_s
        self._standstill = Standstill(None, monotonic_s())
        self._looking: threading.Thread | None = None
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
        while not self._stopped.wait(min(self._deadline_s / _LOOKS, _EVERY_S_MAX)):
            if self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(target=self.look, name="progress", daemon=True)
                self._looking.start()
            if self._standstill.is_over(self._monotonic_s(), self._deadline_s):
                self._on_standstill(self._deadline_s)
                return

    def look(self) -> None:
        """Look once."""
        try:
            sign = self._look()
        except Exception as error:  # noqa: BLE001 - whoever runs the epoch meets it, too
            _log.debug("can't look for progress", error=repr(error))
        else:
            self._standstill = self._standstill.seen(sign, self._monotonic_s())
