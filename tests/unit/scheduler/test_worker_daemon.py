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

    def task(number: int) -> None:
        tasks.append(number)
        if number == 2:
            sys.modules[LOADED] = ModuleType(LOADED)

    run = leaving_out_what_is_loaded(task)
    before = gc.get_freeze_count()
    run(0)
    left_out = gc.get_freeze_count()
    assert left_out > before
    run(1)
    assert gc.get_freeze_count() == left_out, "what a task leaves is collected"
    run(2)
    assert gc.get_freeze_count() > left_out
    assert tasks == [0, 1, 2]


def test_a_worker_that_ends_does_so_with_its_code() -> None:
    def end() -> None:
        sys.exit(3)

    with pytest.raises(SystemExit) as ended:
        leaving_out_what_is_loaded(end)()
    assert ended.value.code == 3
