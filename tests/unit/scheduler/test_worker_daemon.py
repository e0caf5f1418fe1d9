"""After a task, a worker's collections of garbage look at nothing that it has loaded."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from slackwater.scheduler.spark.worker_daemon import leaving_out_what_is_loaded

LOADED = "loaded_by_a_task"


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    sys.modules.pop(LOADED, None)
    gc.unfreeze()


def test_what_a_task_loads_is_left_out_of_later_collections() -> None:
    left: list[list[int]] = []

    def task(number: int) -> int:
        left.append([])
        if number == 2:
            sys.modules[LOADED] = ModuleType(LOADED)
        return number

    run = leaving_out_what_is_loaded(task)
    assert run(0) == 0
    assert not _is_looked_at(left[0]), "it came with what was loaded before"
    assert run(1) == 1
    assert _is_looked_at(left[1]), "what a task leaves is collected"
    assert run(2) == 2
    assert not _is_looked_at(sys.modules[LOADED])
    assert len(left) == 3


def _is_looked_at(thing: object) -> bool:
    """Return whether collections look at `thing`: gc.get_objects leaves out what is frozen."""
    return any(other is thing for other in gc.get_objects())


def test_a_worker_that_fails_does_so_as_ever() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leaving_out_what_is_loaded(fail)()
