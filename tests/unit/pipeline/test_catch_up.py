"""Does a pipeline keep up? One answer from measured rates, for status, page, log and metrics."""

import re

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slackwater.pipeline.catch_up import (
    LAG_WARNING_S,
    RETENTION_WARNING,
    CatchUp,
    Pace,
    catch_up,
    readable_duration,
)
from slackwater.pipeline.condition import Condition, Level
from slackwater.state.models import Epoch
from tests.support.repository import DEPLOY

ALERTS = DEPLOY / "prometheus" / "alerts.yaml"
SECOND_NS = 10**9
DAY_NS = 86_400 * SECOND_NS


def judged(
    speed: float,
    lag_s: float,
    *,
    cycle_s: float = 1.0,
    count: int = 20,
    silent_s: float = 0.0,
    retention_ns: int | None = DAY_NS,
    condition: Condition | None = None,
) -> CatchUp:
    """Judge a pipeline whose low watermark moves at a speed."""
    epochs = []
    for number in range(count):
        end_ns = round(number * cycle_s * speed * SECOND_NS)
        committed_ns = DAY_NS + round(number * cycle_s * SECOND_NS)
        epochs.append(
            Epoch(
                "p", end_ns - round(cycle_s * speed * SECOND_NS), end_ns, 1, 1, 1, committed_ns, 1
            )
        )
    now_ns = DAY_NS + round(((count - 1) * cycle_s + silent_s) * SECOND_NS)
    lag_ns = round(lag_s * SECOND_NS)
    return catch_up(
        epochs, lag_ns=lag_ns, now_ns=now_ns, retention_ns=retention_ns, condition=condition
    )


PAUSED = Condition("Is paused")
SILENT = Condition("Spanner has not answered for 40 s", Level.WARNING, is_held=False)


@pytest.mark.parametrize(
    ("answer", "text", "level"),
    [
        (judged(1, 0.8), "Keeps up: behind by 0.8 s", Level.OK),
        # Behind by less than two epochs of five minutes.
        (judged(1, 290, cycle_s=300), "Keeps up: behind by 5 min", Level.OK),
        (judged(11, 120), "Behind by 2 min, caught up in about 12 s", Level.OK),
        (judged(3, 3_720), "Behind by 62 min, caught up in about 31 min", Level.WARNING),
        (judged(1, 600), "Behind by 10 min, and not catching up", Level.WARNING),
        (judged(0.5, 60), "Behind by 60 s, and falling behind by 30 s a minute", Level.WARNING),
        (judged(1, 158, silent_s=158), "Behind by 3 min: no epoch for 3 min", Level.WARNING),
        (
            judged(0.5, 64_800),
            "Behind by 18.0 h, and falling behind by 30 s a minute;"
            " records are lost in about 12.0 h",
            Level.CRITICAL,
        ),
        (
            judged(1, 1.04 * 86_400, silent_s=4_000),
            "Behind by 25.0 h: no epoch for 67 min; the next records are no longer kept",
            Level.CRITICAL,
        ),
        (judged(30, 64_800), "Behind by 18.0 h, caught up in about 37 min", Level.CRITICAL),
        (judged(1, 3_600, count=1), "Behind by 60 min; its speed is not known yet", Level.WARNING),
        # A pause is no standstill, however long; the retention period counts all the same.
        (judged(3, 93, condition=PAUSED), "Is paused; behind by 93 s", Level.OK),
        (
            judged(1, 3_600, silent_s=3_600, condition=PAUSED),
            "Is paused; behind by 60 min",
            Level.OK,
        ),
        (
            judged(1, 64_800, silent_s=64_800, condition=PAUSED),
            "Is paused; behind by 18.0 h; records are lost in about 6.0 h",
            Level.CRITICAL,
        ),
        (
            judged(1, 2, condition=SILENT),
            "Spanner has not answered for 40 s; keeps up: behind by 2.0 s",
            Level.WARNING,
        ),
        (
            catch_up([], lag_ns=None, now_ns=0, retention_ns=None, condition=PAUSED),
            "Is paused",
            Level.OK,
        ),
        (
            catch_up([], lag_ns=None, now_ns=0, retention_ns=None),
            "No epoch has been committed yet",
            Level.OK,
        ),
    ],
)
def test_the_answer_is_one_line_and_one_level(answer: CatchUp, text: str, level: Level) -> None:
    assert (answer.text(), answer.level) == (text, level)


def test_a_long_epoch_is_no_standstill() -> None:
    assert judged(4, 7_200, cycle_s=30, silent_s=100).pace is Pace.CATCHES_UP
    assert judged(4, 7_200, cycle_s=30, silent_s=200).pace is Pace.STANDS_STILL


def test_the_speed_is_that_of_the_last_minutes() -> None:
    slow = [Epoch("p", 0, n * SECOND_NS // 10, 1, 1, 1, n * SECOND_NS, 1) for n in range(400)]
    last = slow[-1]
    fast = [
        Epoch(
            "p",
            0,
            last.end_ns + n * 50 * SECOND_NS,
            1,
            1,
            1,
            last.committed_at_ns + n * 10 * SECOND_NS,
            1,
        )
        for n in range(1, 40)
    ]
    epochs = [*slow, *fast]
    answer = catch_up(
        epochs, lag_ns=4_000 * SECOND_NS, now_ns=epochs[-1].committed_at_ns, retention_ns=None
    )
    assert answer.speed == pytest.approx(5)
    assert answer.caught_up_in_s == pytest.approx(1_000)


@given(st.floats(0, 100), st.floats(0, 10**6), st.floats(0.1, 100), st.floats(0, 10**4))
def test_what_is_promised_follows_from_the_pace(
    speed: float, lag_s: float, cycle_s: float, silent_s: float
) -> None:
    answer = judged(speed, lag_s, cycle_s=cycle_s, silent_s=silent_s)
    assert (answer.caught_up_in_s is not None) == (answer.pace in (Pace.KEEPS_UP, Pace.CATCHES_UP))
    assert (answer.lost_in_s is not None) == (answer.pace in (Pace.STANDS_STILL, Pace.FALLS_BEHIND))
    assert answer.text()


def test_the_limits_are_those_of_the_alerts() -> None:
    rules = yaml.safe_load(ALERTS.read_text())["groups"][0]["rules"]
    expressions = {rule["alert"]: rule["expr"] for rule in rules}
    (lag,) = re.findall(r"lag_seconds > (\d+)", expressions["SlackwaterLagging"])
    (used,) = re.findall(r"used_ratio > ([\d.]+)", expressions["SlackwaterRetention"])
    assert (float(lag), float(used)) == (LAG_WARNING_S, RETENTION_WARNING)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.84, "0.8 s"), (42.2, "42 s"), (158, "3 min"), (9_000, "2.5 h"), (268_000, "3.1 days")],
)
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert readable_duration(seconds) == text
