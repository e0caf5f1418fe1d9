"""The page in a browser: splits and merges, a failure and its remedy, a stalled partition."""

import os
import re
import shlex
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339
from tests.faults.proxy import FaultProxy, Stalls
from tests.support.browsers import browser as browser
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.waiting import wait_until
from tests.synthetic.script import Script, lineage
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

PHONE = ViewportSize(width=360, height=740)
SCREEN = ViewportSize(width=1_200, height=900)


@pytest.mark.long
def test_the_page_shows_splits_merges_a_failure_with_its_remedy_and_a_stall(
    new_database: NewDatabase, browser: Browser, tmp_path: Path
) -> None:
    stream = new_database()
    start_ns = Connection(stream).strong_read_timestamp_ns()
    with FaultProxy(stream.endpoint.target) as proxy:
        behind = replace(stream, endpoint=plaintext(proxy.host))
        service = start(behind, tmp_path, start_ns)
        load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=3)
        load.run(transactions_per_second=20, seconds=8)
        page = open_page(browser, service)
        require_partitions_and_figures(page)
        page.screenshot(path=tmp_path / "running.png", full_page=True)
        require_failure_with_remedy(page, stream, tmp_path)
        require_stall(page, proxy)
        page.screenshot(path=tmp_path / "stalled.png", full_page=True)
        page.close()
        log = service.log.read_text()
        # A worker's line, as the service's own lines are.
        stalls = [line for line in log.splitlines() if " stalled: " in line]
        assert stalls
        assert all(re.match("timestamp=.* level=warning event=", line) for line in stalls)
        # A signal does not wait for a Spanner that is silent.
        os.kill(service.pid, signal.SIGTERM)
        assert service.wait(seconds_max=240) == 0
    at_the_end = service.log.read_text().removeprefix(log)
    assert "stopped within an epoch" in at_the_end
    assert "Traceback" not in at_the_end


def require_partitions_and_figures(page: Page) -> None:
    expect(page.locator("#badge")).to_have_text("running")
    expect(page.locator("#lag")).to_have_text(re.compile(r"\d\.\d\d s"))
    expect(page.locator("#freshness")).to_have_text(re.compile(r"\d\.\d\d s"))
    expect(page.locator("#lag-plot polyline").first).to_be_attached()
    expect(page.locator("#keeps-up")).to_have_text(re.compile(r"Keeps up|Behind by"))
    # Of partitions that live two seconds some have split and others merged.
    partitions = page.evaluate("fetch('api/pipelines/orders/partitions').then((a) => a.json())")
    shown = {bar.get_attribute("data-token") for bar in page.locator("#lineage rect").all()}
    links = sum(len(set(p["parents"]) & shown) for p in partitions if p["token"] in shown)
    assert page.locator("#lineage path").count() >= links * 0.8 > 0
    assert max(len(p["parents"]) for p in partitions) >= 2, "no merge"
    children = [parent for p in partitions for parent in p["parents"]]
    assert max(map(children.count, children)) >= 2, "no split"


def require_failure_with_remedy(page: Page, stream: ChangeStream, folder: Path) -> None:
    """Drop the stream, make it again, and go on as the page says."""
    update_ddl(stream, [f"DROP CHANGE STREAM {stream.change_stream}"])
    badge, reason = page.locator("#badge"), page.locator("#reason")
    expect(badge).to_have_text("failed permanently")
    expect(reason).to_contain_text("--skip-to earliest")
    page.set_viewport_size(PHONE)
    width = page.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], "the page is wider than a phone"
    page.screenshot(path=folder / "failed.png", full_page=True)
    page.set_viewport_size(SCREEN)
    [command] = re.findall(r"`slackwater ([^`]*)`", reason.inner_text())
    assert "--pipeline" not in command, "it has the name of the only one"
    update_ddl(stream, [f"CREATE CHANGE STREAM {stream.change_stream} FOR ALL"])
    assert slackwater(*shlex.split(command)).stdout == "orders: goes on\n"
    expect(badge).to_have_text("running")


def require_stall(page: Page, proxy: FaultProxy) -> None:
    proxy.rules = [Stalls(times=1_000, messages_max=0, tokens=None)]
    wait_until(lambda: proxy.injected.get("stall"))
    expect(page.locator("#lineage rect.stalled").first).to_be_visible()
    expect(page.locator("#held")).to_contain_text("holds the low watermark back")


@pytest.mark.long
def test_the_page_keeps_up_with_a_thousand_partitions(browser: Browser, tmp_path: Path) -> None:
    now_us = time.time_ns() // 1_000
    changes = [now_us + 15_000_000, now_us + 20_000_000]
    partitions = lineage(1_000, now_us - 60_000_000, changes, seed=4)
    with synthetic_process(Script(Dialect.GOOGLE_STANDARD_SQL, tuple(partitions))) as host:
        stream = ChangeStream(
            "bench-project", "bench", "bench", CHANGE_STREAM, endpoint=plaintext(host)
        )
        service = start(stream, tmp_path, (now_us - 30_000_000) * 1_000)
        service.wait_for_watermark((changes[1] + 1_000_000) * 1_000, seconds_max=180)
        page = open_page(browser, service)
        page.emulate_media(color_scheme="dark")
        expect(page.locator("#grouped")).to_contain_text("counted over time")
        expect(page.locator("#lineage rect.group")).to_have_count(120)
        running = page.evaluate("fetch('api/pipelines').then((a) => a.json())")
        assert running[0]["partitions"]["running"] >= 900
        begun = time.monotonic()
        page.evaluate("draw()")
        assert time.monotonic() - begun < 5
        page.screenshot(path=tmp_path / "thousand.png", full_page=True)
        page.close()
        assert service.drain() == 0


def start(stream: ChangeStream, folder: Path, start_ns: int) -> Service:
    values: dict[str, Any] = settings(stream, folder, format_rfc3339(start_ns))
    values["http"] = {"listen": "127.0.0.1:0"}
    values["epoch"] |= {"heartbeat": "1s", "target_time": "1s", "trigger": "500ms"}
    service = Service(
        values, folder, os.environ | {"SPANNER_EMULATOR_HOST": stream.endpoint.target}
    )
    service.start()
    service.wait_for_watermark(start_ns, seconds_max=180)
    return service


def open_page(browser: Browser, service: Service) -> Page:
    address = re.findall(r"http://127\.0\.0\.1:\d+", service.log.read_text())[-1]
    page = browser.new_page(viewport=SCREEN)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # Requests to any other address are refused.
    page.route(lambda url: not url.startswith(address), lambda route: route.abort())
    page.goto(address)
    expect(page.locator("#connection")).to_contain_text("updated")
    assert not errors
    return page
