"""What a supervisor says of its Spark and of its standing by, without a Spark."""

import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from py4j.protocol import Py4JNetworkError

from slackwater.pipeline.supervisor import PipelineSupervisor
from slackwater.spark_sink.output.maintenance import Maintenance

K8S = "k8s://https://kubernetes.default.svc"
_SECONDS_MAX = 60


def supervisor_with(master: str, registered: int | Exception, **lease: bool) -> PipelineSupervisor:
    """Return a supervisor whose JVM knows so many block managers, the driver's among them."""

    def status() -> Any:
        if isinstance(registered, Exception):
            raise registered
        return SimpleNamespace(size=lambda: registered)

    context = SimpleNamespace(getExecutorMemoryStatus=status)
    supervisor = object.__new__(PipelineSupervisor)
    fields = {
        "settings": SimpleNamespace(spark=SimpleNamespace(master=master)),
        "lease": SimpleNamespace(is_held=lease.get("is_held", False)),
        "_spark": SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: context)),
        "_stands_by": True,
        "_is_needed": threading.Event(),
    }
    for name, value in fields.items():
        setattr(supervisor, name, cast(Any, value))
    return supervisor


@pytest.mark.parametrize(
    ("master", "registered", "executors"),
    [
        (K8S, 1, 0),
        (K8S, 3, 2),
        ("spark://master:7077", 2, 1),
        ("local[2,4]", 1, None),
        # The JVM has died, or is about to.
        (K8S, Py4JNetworkError("no answer"), None),
    ],
)
def test_the_driver_is_not_counted_among_its_executors(
    master: str, registered: int | Exception, executors: int | None
) -> None:
    assert supervisor_with(master, registered).executors() == executors


def test_before_spark_has_started_nothing_is_counted() -> None:
    supervisor = supervisor_with(K8S, 3)
    supervisor._spark = None
    assert supervisor.executors() is None


@pytest.mark.parametrize("is_held", [True, False])
def test_an_owner_does_not_stand_by(is_held: bool) -> None:
    assert supervisor_with(K8S, 1, is_held=is_held).stands_by is not is_held


@pytest.mark.parametrize("fails", [True, False])
def test_a_standby_says_so_when_its_spark_is_warm(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def warm_up(spark: object) -> None:
        begun.set()
        assert ended.wait(_SECONDS_MAX)
        if fails:
            raise Py4JNetworkError("no answer")

    monkeypatch.setattr("slackwater.pipeline.supervisor.warm_up", warm_up)
    monkeypatch.setattr("slackwater.pipeline.supervisor.keep_warm", lambda *_: None)
    # Expected, and nothing that a test run should warn of.
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    supervisor = supervisor_with(K8S, 1)
    supervisor._stands_by = False
    supervisor._stand_by()
    assert begun.wait(_SECONDS_MAX)
    assert not supervisor.stands_by
    ended.set()
    until = time.monotonic() + _SECONDS_MAX
    while not supervisor.stands_by and time.monotonic() < until:
        time.sleep(0.01)
    assert supervisor.stands_by


def test_a_pipeline_that_has_ended_waits_for_its_maintenance_but_not_after_a_signal() -> None:
    supervisor = supervisor_with(K8S, 0)
    may_end, rounds = threading.Event(), list[str]()

    def maintain(_: Any, path: str) -> None:
        assert may_end.wait(_SECONDS_MAX)
        rounds.append(path)

    maintenance = Maintenance(maintain, every_s=0.0)
    maintenance.begin_if_due(cast(Any, None), lambda: ["output"])
    supervisor._sink = cast(Any, SimpleNamespace(maintenance=maintenance))
    supervisor._signalled = threading.Event()
    supervisor._signalled.set()
    supervisor._finish_maintenance()
    assert rounds == []
    supervisor._signalled.clear()
    may_end.set()
    supervisor._finish_maintenance()
    assert rounds == ["output"]
