"""The output of a JVM's start, without Ivy's many lines unless the start fails."""

import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from slackwater.printing import in_one_line
from slackwater.secrecy import masked

_IVYS: Final = re.compile(
    rb"::|\t(?!at )|\s*$|Ivy Default Cache set to: |The jars for the packages stored in: "
    rb"|downloading https?:|\S+#\S+ added as a dependency$"
    rb"|\S+ added as a remote repository with the name: "
)
_STANDARD_ERROR: Final = 2
# For lines that are on their way when the JVM has started.
_UNDER_WAY_S: Final = 1.0
_END_S_MAX: Final = 5.0


@contextmanager
def without_ivys_lines() -> Iterator[int]:
    """Yield a file descriptor for the standard error of a JVM that starts in the context.

    Lines during the context are held back until its end: then all of them are written to this
    process's standard error if there was an error, and otherwise those that are not Ivy's. Later
    lines are written at once.
    """
    reading, writing = os.pipe()
    pump = _Pump(reading)
    thread = threading.Thread(target=pump.run, name="jvm-output", daemon=True)
    thread.start()
    try:
        yield writing
    except BaseException:
        pump.release(drops_ivys=False)
        raise
    else:
        pump.release(drops_ivys=True)
    finally:
        # The JVM has its own. Of one that has ended, the last lines are waited for.
        os.close(writing)
        if not pump.drops_ivys:
            thread.join(_END_S_MAX)


class _Pump:
    """A copier of lines from a pipe to standard error, which holds the first ones back."""

    def __init__(self, reading: int) -> None:
        self.drops_ivys = False
        self._reading = reading
        self._held: list[bytes] | None = []
        self._released_s = 0.0
        self._lock = threading.Lock()

    def run(self) -> None:
        """Copy until the other end is closed."""
        with os.fdopen(self._reading, "rb") as lines:
            for line in iter(lines.readline, b""):
                with self._lock:
                    if self._held is not None:
                        self._held.append(line)
                    elif not (self._are_under_way and _IVYS.match(line)):
                        _write(line)

    def release(self, *, drops_ivys: bool) -> None:
        """Write the lines that were held back, with Ivy's or without."""
        with self._lock:
            self.drops_ivys, self._released_s = drops_ivys, time.monotonic()
            for line in self._held or ():
                if not (drops_ivys and _IVYS.match(line)):
                    _write(line)
            self._held = None

    @property
    def _are_under_way(self) -> bool:
        return self.drops_ivys and time.monotonic() - self._released_s < _UNDER_WAY_S


def _write(line: bytes) -> None:
    # Exceptions have tokens and values in them; stack traces begin with a tab.
    text = masked(line.rstrip(b"\n").decode("utf-8", "surrogateescape"))
    text = "\t".join(map(in_one_line, text.split("\t")))
    line = f"{text}\n".encode("utf-8", "surrogateescape")
    while line:
        line = line[os.write(_STANDARD_ERROR, line) :]
