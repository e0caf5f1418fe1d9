"""Maintenance runs beside the epochs, one round at a time, and a failure stops nothing."""

import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output import maintenance as module
from slackwater.spark_sink.output.maintenance import Maintenance

SPARK: Any = object()


def test_a_round_runs_beside_the_caller_and_the_next_waits_for_it() -> None:
    may_end, done = threading.Event(), list[str]()

    def maintain(spark: Any, path: str) -> None:
        assert spark is SPARK
        assert may_end.wait(60)
        done.append(path)

    maintenance = Maintenance(maintain, every_s=0.0)
    maintenance.begin_if_due(SPARK, lambda: ["a", "b"])
    assert not maintenance.is_due
    maintenance.begin_if_due(SPARK, lambda: ["never"])
    may_end.set()
    maintenance.wait()
    assert done == ["a", "b"]
    assert maintenance.is_due


@pytest.mark.parametrize("every_s", [None, 3600.0])
def test_no_round_begins_before_it_is_due(every_s: float | None) -> None:
    maintenance = Maintenance(lambda *_: pytest.fail("it began"), every_s)
    maintenance.begin_if_due(SPARK, lambda: pytest.fail("it was asked for paths"))
    assert not maintenance.is_due
    maintenance.wait()


def test_what_fails_is_named_and_the_others_are_maintained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    def maintain(_: Any, path: str) -> None:
        if path == "broken":
            raise PublishError("another process has committed.")
        done.append(path)

    maintenance = Maintenance(maintain, every_s=0.0)
    maintenance.begin_if_due(SPARK, lambda: ["broken", "whole"])
    maintenance.wait()
    assert done == ["whole"]
    assert "broken was not maintained: another process has committed." in caplog.text

    def unlisted() -> list[str]:
        raise OSError("no such folder")

    maintenance.begin_if_due(SPARK, unlisted)
    maintenance.wait()
    assert "the output was not maintained: no such folder" in caplog.text
    assert maintenance.is_due


@pytest.mark.parametrize("minutes", [5, 90])
def test_runs_too_short_for_the_interval_do_a_round_in_each(
    minutes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from cron: each is a process of its own, which writes an epoch or two."""
    clock = {"now_s": 1_800_000_000.0}
    monkeypatch.setattr(
        module,
        "time",
        SimpleNamespace(time=lambda: clock["now_s"], monotonic=lambda: clock["now_s"]),
    )
    rounds: list[float] = []
    last = None
    for _ in range(24 * 60 // minutes):
        maintenance = Maintenance(lambda *_: rounds.append(clock["now_s"]), every_s=3_600.0)
        maintenance.take_over(last)
        for _ in range(2):
            clock["now_s"] += 1
            last = datetime.fromtimestamp(clock["now_s"], UTC)
            maintenance.begin_if_due(SPARK, lambda: ["output"])
        maintenance.finish()
        clock["now_s"] += 60 * minutes
    per_day = min(24, 24 * 60 // minutes)
    assert per_day - 1 <= len(rounds) <= per_day + 1


def test_a_wait_for_a_round_can_be_given_up() -> None:
    may_end = threading.Event()

    def maintain(*_: Any) -> None:
        assert may_end.wait(60)

    maintenance = Maintenance(maintain, every_s=0.0)
    maintenance.begin_if_due(SPARK, lambda: ["a"])
    maintenance.wait(lambda: True)
    assert not maintenance.is_due
    may_end.set()
    maintenance.wait()
    assert maintenance.is_due
