"""Maintenance beside the epochs: small files become few large ones, old versions are removed."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MaintenancePolicy:
    """The intervals of an output's maintenance.

    Attributes:
        every_s: seconds between two rounds; None for never.
        keep_s: the seconds for which replaced files can still be read; None for ever.
    """

    every_s: float | None = None
    keep_s: float | None = None


NO_MAINTENANCE: Final = MaintenancePolicy()
# The part of the interval that counts as over when a process begins.
_FIRST_AFTER: Final = 0.9
_POLL_S: Final = 0.1


class Maintenance:
    """The maintenance of one output's tables or folders.

    A round is a thread that ends by itself. Epochs go on meanwhile, also those of another process
    that has taken the pipeline over: a round changes no row, and its commits are refused if they
    would undo another one.

    Args:
        maintain: maintains the table or folder at a path.
        every_s: seconds between two rounds; None for never.
    """

    def __init__(
        self, maintain: Callable[[SparkSession, str], None], every_s: float | None
    ) -> None:
        self._maintain = maintain
        self._every_s = every_s
        # The first round comes soon: the process may not last long enough for a second.
        self._last_s = time.monotonic() - _FIRST_AFTER * (every_s or 0.0)
        self._round: threading.Thread | None = None
        # In the clock's interval.
        self._is_first = False
        self._latest: tuple[SparkSession, Callable[[], Iterable[str]]] | None = None

    def take_over(self, last: datetime | None) -> None:
        """Note whether an earlier process has written in this interval, and so had its round.

        Intervals are those of the clock, such as the hours of a day. A process that is too short
        for one of its own does the round at its end, if it is the first in the interval.

        Args:
            last: the low watermark of the last epoch before this process; None without one.
        """
        if self._every_s and last is not None:
            self._is_first = last.timestamp() // self._every_s < time.time() // self._every_s

    @property
    def is_due(self) -> bool:
        """Whether the interval has passed since the last round, which has ended."""
        if self._every_s is None or (self._round is not None and self._round.is_alive()):
            return False
        return time.monotonic() - self._last_s >= self._every_s

    def begin_if_due(self, spark: SparkSession, paths: Callable[[], Iterable[str]]) -> None:
        """Begin a round if one is due.

        Args:
            spark: the session.
            paths: returns the paths to maintain; the round calls it.
        """
        self._latest = (spark, paths)
        if self.is_due:
            self._begin(spark, paths)

    def _begin(self, spark: SparkSession, paths: Callable[[], Iterable[str]]) -> None:
        self._round = threading.Thread(
            target=self._run, args=(spark, paths), name="maintenance", daemon=True
        )
        self._round.start()

    def finish(self, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Do the round that no process has done in this interval, as wait() does.

        Args:
            is_given_up: asked while this waits.
        """
        if self._is_first and self._round is None and self._latest and not is_given_up():
            self._begin(*self._latest)
        self.wait(is_given_up)

    def wait(self, is_given_up: Callable[[], bool] = lambda: False) -> None:
        """Wait until a round that has begun is over, or the wait is given up."""
        while self._round is not None and self._round.is_alive() and not is_given_up():
            self._round.join(_POLL_S)

    def _run(self, spark: SparkSession, paths: Callable[[], Iterable[str]]) -> None:
        """Do a round; a failed step is tried again in the next one."""
        try:
            with _logged_failures("the output"):
                for path in paths():
                    with _logged_failures(path):
                        begun_s = time.monotonic()
                        self._maintain(spark, path)
                        _log.debug("%s was maintained in %.1f s", path, time.monotonic() - begun_s)
        finally:
            self._last_s = time.monotonic()


@runtime_checkable
class Maintained(Protocol):
    """A sink that maintains its output beside the epochs."""

    maintenance: Maintenance


@contextmanager
def _logged_failures(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # noqa: BLE001 - one table's failure must not stop the others
        _log.warning("%s was not maintained: %s", what, str(error).partition("\n")[0])
