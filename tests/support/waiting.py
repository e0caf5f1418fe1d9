"""Waits for what must happen."""

import time
from collections.abc import Callable


def wait_until(
    is_so: Callable[[], object],
    said: Callable[[], str] = lambda: "",
    *,
    seconds_max: float = 240,
    pause_s: float = 0.05,
) -> None:
    """Wait until something is so.

    Args:
        is_so: whether it is.
        said: what a failure says.
        seconds_max: the limit, which a busy machine does not reach.
        pause_s: between two looks.

    Raises:
        AssertionError: it is not within the limit.
    """
    until = time.monotonic() + seconds_max
    while not is_so():
        assert time.monotonic() < until, said()
        time.sleep(pause_s)
