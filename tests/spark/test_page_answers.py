"""The page answers "does it keep up?" in one place, at any width, in any state of the pipeline.

The pipeline is a metadata store with an hour of made-up epochs: no Spark, and the real server.
"""

import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest
from playwright.sync_api import Browser, Page, expect

from slackwater.config.settings import Http
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.http import serving
from slackwater.monitoring.metrics import Metrics
from slackwater.monitoring.status import StatusPoller
from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.reader.bigtable.positions import Position
from slackwater.reader.bigtable.row_range import RowRange
from slackwater.scheduler.bigtable.planner import task_positions
from slackwater.state.commit import restart_at
from slackwater.state.epochs import record_epoch
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import Epoch, OpenQuery, Partition, PipelineState, Plan
from slackwater.state.open_queries import report_queries
from slackwater.state.plans import begin_plan
from slackwater.state.positions import set_positions
from slackwater.state.rescan_models import REPAIR, Rescan, RescanState
from slackwater.state.rescans import request_rescans
from slackwater.state.store import Store
from slackwater.state.verified_models import VerifiedTable
from slackwater.state.verified_tables import record_verified
from tests.support.browsers import browser as browser

SECOND_NS = 10**9
HOUR_S = 3_600
RETENTION_NS = 24 * HOUR_S * SECOND_NS
DESKTOP, PHONE = {"width": 1_200, "height": 900}, {"width": 360, "height": 740}


@dataclass(frozen=True)
class Scenario:
    """A pipeline's last epochs.

    Attributes:
        ages_s: of each epoch: how long ago it was committed, the oldest first.
        lags_s: of each: how far its low watermark was behind then.
        partitions, stalled: how many are running, and how many of them are stalled.
    """

    ages_s: tuple[float, ...]
    lags_s: tuple[float, ...]
    partitions: int = 1
    stalled: int = 0


# The right edge of each cell of the table of epochs; its rows are replaced every second.
RIGHT_EDGES = """
[...document.querySelectorAll("#epochs td")].map((cell) => cell.getBoundingClientRect().right)
"""

AGES_S = tuple(range(300, 0, -1))
LIVE = Scenario(AGES_S, (0.8,) * 300)
OUTAGE = Scenario(tuple(range(480, 180, -1)), (0.8,) * 300, partitions=300, stalled=3)
CATCH_UP = Scenario(
    tuple(range(600, 0, -20)), tuple(3_720.0 + 40 * n for n in range(30, 0, -1)), partitions=300
)
MENDED = Scenario(
    (*range(500, 350, -1), *range(60, 0, -1)), (0.8,) * 210, partitions=3_000, stalled=2
)
LOST = Scenario((4_200.0, 4_100.0, 4_000.0), (1.0 * 24 * HOUR_S - 40,) * 3, partitions=3_000)
# Of each: the answer, its level, and how many gaps the plots show.
ANSWERS = {
    "live": (LIVE, r"Keeps up: behind by [\d.]+ s", "ok", 0),
    "outage": (OUTAGE, r"Behind by 3 min: no epoch for 3 min", "warning", 1),
    "catch-up": (CATCH_UP, r"Behind by 6\d min, caught up in about \d+ min", "warning", 0),
    "mended": (MENDED, r"Keeps up: behind by [\d.]+ s", "ok", 1),
    "lost": (
        LOST,
        r"Behind by 25\.\d h: no epoch for 6\d min; the next recor",
        "critical",
        1,
    ),
}
# Each answer once, and a stalled partition among few and among many.
CASES = {*((name, scenario.partitions) for name, (scenario, *_) in ANSWERS.items()), ("outage", 1)}
OTHER_CASES = {*product(ANSWERS, [1, 3_000])} - CASES
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")


@contextmanager
def served(folder: Path, scenario: Scenario) -> Iterator[str]:
    """Serve the page of a pipeline as it is in a scenario."""
    store = Store.open(f"sqlite:///{folder}/state.db", migrate=True)
    now_ns = time.time_ns()
    store.ensure_pipeline("orders", "projects/p/instances/i/databases/d/changeStreams/Orders")
    assert acquire_lease(store, "orders", "host:1", read_lease(store, "orders")) is not None
    watermark_ns = 0
    for age_s, lag_s in zip(scenario.ages_s, scenario.lags_s, strict=True):
        committed_ns = now_ns - round(age_s * SECOND_NS)
        end_ns = committed_ns - round(lag_s * SECOND_NS)
        record_epoch(
            store,
            Epoch("orders", end_ns - SECOND_NS, end_ns, 70, 30, 2, committed_ns, 0.4),
        )
        watermark_ns = end_ns
    restart_at(store, "orders", watermark_ns, [])
    tokens = [f"{number:05}TokenOfAPartition" for number in range(scenario.partitions)]
    partitions = [
        Partition(token, watermark_ns - (number * 7 % 90) * SECOND_NS)
        for number, token in enumerate(tokens)
    ]
    store.replace_partitions("orders", partitions, generation=None)
    plan = Plan("plan", "orders", watermark_ns, watermark_ns + SECOND_NS, None)
    begin_plan(store, plan, tasks=1)
    stalled = [
        OpenQuery(token, watermark_ns - number * SECOND_NS, 90_000, 80_000, 2)
        for number, token in enumerate(tokens[-scenario.stalled :] if scenario.stalled else [])
    ]
    report_queries(store, "plan", 0, stalled)
    store.set_state("orders", PipelineState.RUNNING, "", now_ns - HOUR_S * SECOND_NS)
    clock = SpannerClock(time.time_ns)
    clock.start()
    supervisor = SimpleNamespace(
        name="orders",
        settings=SimpleNamespace(source=SimpleNamespace(service="Spanner")),
        store=store,
        clock=clock,
        lease=SimpleNamespace(is_held=True, unrenewed_s=None),
        stands_by=False,
        unrecorded=None,
        source=SimpleNamespace(retention_ns=RETENTION_NS),
    )
    http = Http(listen="127.0.0.1:0")
    with serving(http, [cast(Any, supervisor)], EpochHistory(), Metrics()) as address:
        assert address is not None
        yield address
    clock.stop()
    store.close()


@contextmanager
def opened(browser: Browser, address: str, scheme: Literal["dark", "light"]) -> Iterator[Page]:
    """Show the page on a desktop; its script fails nowhere."""
    errors: list[str] = []
    page = browser.new_page(
        viewport=cast(Any, DESKTOP), color_scheme=scheme, timezone_id="Asia/Kolkata"
    )
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address)
    expect(page.locator("#connection")).to_contain_text("updated")
    expect(page.locator("#keeps-up")).not_to_be_empty()
    yield page
    page.close()
    assert not errors


@pytest.mark.parametrize(
    ("name", "partitions"),
    [
        *sorted(CASES),
        *(pytest.param(*case, marks=pytest.mark.long) for case in sorted(OTHER_CASES)),
    ],
)
def test_one_element_says_whether_the_pipeline_keeps_up(
    browser: Browser, tmp_path: Path, name: str, partitions: int
) -> None:
    scenario, text, level, gaps = ANSWERS[name]
    stalled = min(scenario.stalled, partitions)
    scenario = replace(scenario, partitions=partitions, stalled=stalled)
    with served(tmp_path, scenario) as address, opened(browser, address, "light") as page:
        answer = page.locator("#keeps-up")
        expect(answer).to_have_text(re.compile(text))
        expect(answer).to_have_attribute("data-level", level)
        expect(page.locator("#badge")).to_have_attribute("data-level", level)
        for plot in ("#lag-plot", "#records-plot"):
            expect(page.locator(f"{plot} .gap")).to_have_count(gaps)
        expect_partitions(page, scenario)
        colours = set()
        for scheme in SCHEMES:
            page.emulate_media(color_scheme=scheme)
            colours.add(answer.evaluate("(answer) => getComputedStyle(answer).color"))
            for size in (DESKTOP, PHONE):
                page.set_viewport_size(cast(Any, size))
                page.evaluate("draw()")
                rights = page.evaluate(RIGHT_EDGES)
                assert len(rights) > 6
                assert max(rights) <= size["width"], "an epoch's row is cut"
                width = page.evaluate("document.documentElement.scrollWidth")
                assert width <= size["width"], "the page is wider than the screen"
        assert len(colours) == 2, "the answer has one colour on dark and on light"


def test_the_marks_of_an_axis_have_one_unit(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path, OUTAGE) as address, opened(browser, address, "light") as page:
        marks = page.locator("#lag-plot text[text-anchor=end]").all_text_contents()
        assert [mark.split()[-1] for mark in marks[:3]] == ["min"] * 3


def test_the_page_says_what_is_proved_and_which_tables_are_read_again(
    browser: Browser, tmp_path: Path
) -> None:
    with served(tmp_path, LIVE) as address, opened(browser, address, "light") as page:
        store = Store.open(f"sqlite:///{tmp_path}/state.db", migrate=False)
        proved = page.locator("#proof")
        expect(proved).to_be_hidden()
        equal_at_ns = time.time_ns() - 60 * SECOND_NS
        record_verified(store, VerifiedTable("orders", "Orders"))
        expect(proved).to_contain_text("no whole round yet")
        for name in ("Orders", "Payments"):
            record_verified(store, VerifiedTable("orders", name, equal_at_ns=equal_at_ns))
        expect(proved).to_have_text(re.compile(r"proved equal up to .* UTC, 6\d s ago"))
        expect(proved).to_have_attribute("data-level", "ok")
        record_verified(store, VerifiedTable("orders", "Orders", different=2))
        expect(proved).to_have_text("Mirrors that differ from their tables: Orders")
        expect(proved).to_have_attribute("data-level", "critical")
        again = Rescan("orders", "Orders", 1, REPAIR, records=1_500, corrected=2)
        done = Rescan("orders", "Payments", 1, REPAIR, state=RescanState.DONE)
        request_rescans(store, [again, done])
        expect(page.locator("#rescans li")).to_have_count(1)
        text = "Reading Orders again (repair): 1500 rows, 2 corrected"
        expect(page.locator("#rescans li")).to_have_text(text)
        metrics = page.request.get(f"{address}/metrics").text()
        assert 'slackwater_different_mirrors{pipeline="orders"} 1.0' in metrics
        assert 'slackwater_running_rescans{pipeline="orders"} 1.0' in metrics
        assert "slackwater_proved_equal_timestamp_seconds{" not in metrics
        store.close()


def test_a_partition_of_bigtable_whose_replication_stands_still_is_named(
    browser: Browser, tmp_path: Path
) -> None:
    left, right = RowRange(b"", b"m"), RowRange(b"m", b"")
    positions = [Position(left, left, "l", 9), Position(right, right, "r", 9, 1_000_000)]
    with (
        served(tmp_path, replace(LIVE, partitions=0)) as address,
        opened(browser, address, "light") as page,
    ):
        expect(page.locator("#held")).to_be_empty()
        store = Store.open(f"sqlite:///{tmp_path}/state.db", migrate=False)
        set_positions(store, "orders", task_positions(positions), 1, generation=None)
        stands = "Replication of partition [m, ) stands still."
        through = f"{stands} It is complete through 1970-01-01 00:00:01"
        expect(page.locator("#held")).to_contain_text(through)
        expect(page.locator("#grouped")).to_contain_text("2 partitions, without a history")
        expect(page.locator("#running")).to_have_text("2")
        metrics = page.request.get(f"{address}/metrics").text()
        assert 'slackwater_standing_partitions{pipeline="orders"} 1.0' in metrics
        [status] = page.request.get(f"{address}/api/pipelines").json()
        assert [each["keys"] for each in status["replication_stands_still"]] == ["[m, )"]
        store.close()


def expect_partitions(page: Page, scenario: Scenario) -> None:
    """Expect what holds back first, and beyond a hundred partitions only that by itself."""
    bars = page.locator("#lineage rect[data-token]")
    is_grouped = scenario.partitions > 100
    expect(bars).to_have_count(scenario.stalled if is_grouped else scenario.partitions)
    expect(page.locator("#lineage rect.stalled")).to_have_count(scenario.stalled)
    if is_grouped:
        others = scenario.partitions - scenario.stalled
        expect(page.locator("#grouped")).to_contain_text(f"{others} running")
    if scenario.stalled:
        # The furthest behind is the first.
        token = f"{scenario.partitions - 1:05}TokenOfAPartition"
        expect(bars.first).to_have_attribute("data-token", token)
        expect(page.locator("#slow tbody tr").first).to_have_attribute("title", token)


def test_plots_end_at_now_in_one_time_zone_and_old_numbers_are_dimmed(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    answers.set()
    epochs = StatusPoller.epochs

    def held_epochs(poller: StatusPoller, limit: int) -> list[dict[str, Any]]:
        answers.wait(60)
        return epochs(poller, limit)

    monkeypatch.setattr(StatusPoller, "epochs", held_epochs)
    with served(tmp_path, OUTAGE) as address, opened(browser, address, "light") as page:
        end = page.locator("#lag-plot text").last
        expect(end).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))
        shown = page.evaluate("document.querySelector('#lag-plot text:last-of-type').textContent")
        now_s = time.time() % 86_400
        hours, minutes, seconds = map(int, shown.split(":"))
        assert abs(hours * 3_600 + minutes * 60 + seconds - now_s) % 86_400 < 10
        expect(page.locator("#zone")).to_have_text("UTC")
        page.locator("#zone").click()
        expect(page.locator("#zone")).to_have_text("UTC+5:30")
        expect(page.locator("#watermark")).to_contain_text("UTC+5:30")
        expect(page.locator("#epochs td").first).to_contain_text("UTC+5:30")
        page.locator("#zone").click()
        expect(page.locator("#watermark")).to_contain_text("UTC")

        # A server that accepts and does not answer.
        answers.clear()
        page.locator("#zone").click()
        expect(page.locator("body")).to_have_class("stale")
        expect(page.locator("#connection")).to_contain_text("the numbers are old")
        page.screenshot(path=tmp_path / "stale.png", full_page=True)
        answers.set()
        expect(page.locator("body")).not_to_have_class("stale")
