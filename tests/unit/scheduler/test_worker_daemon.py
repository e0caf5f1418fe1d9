"""After a task, a worker's collections of garbage look at nothing that it has loaded."""

from __future__ import annotations

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
    tasks = []

    def task(number: int) -> int:
        tasks.append(number)
        if number == 2:
            sys.modules[LOADED] = ModuleType(LOADED)
        return number

    run = leaving_out_what_is_loaded(task)
    before = gc.get_freeze_count()
    assert run(0) == 0
    left_out = gc.get_freeze_count()
    assert left_out > before
    assert run(1) == 1
    assert gc.get_freeze_count() == left_out, "what a task leaves is collected"
    assert run(2) == 2
    assert gc.get_freeze_count() > left_out
    assert tasks == [0, 1, 2]


def test_a_worker_that_fails_does_so_as_ever() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leaving_out_what_is_loaded(fail)()
