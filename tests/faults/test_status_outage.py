"""Spanner stops answering, and answers again: what the status says, with real parts."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import structlog

from slackwater.endpoint import plaintext
from slackwater.monitoring.epoch_history import EpochHistory
from slackwater.monitoring.status import StatusPoller
from slackwater.pipeline.alerts import Alerts
from slackwater.pipeline.spanner_clock import SpannerClock
from slackwater.reader.transport.connection import Connection
from slackwater.state.commit import restart_at
from slackwater.state.store import Store
from tests.faults.proxy import FaultProxy, Freezes
from tests.support.emulators import NewDatabase

HOUR_NS = 3_600 * 10**9
RIGHT_WITHIN_S = 5


def wait_until(is_so: Callable[[], bool], seconds_max: float) -> float:
    """Wait, and return for how long."""
    begun_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - begun_s < seconds_max
        time.sleep(0.05)
    return time.monotonic() - begun_s


def test_the_status_is_right_within_seconds_of_the_first_epoch_after_an_outage(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    direct = Connection(stream)
    store = Store.open(f"sqlite:///{tmp_path}/state.db", migrate=True)
    store.ensure_pipeline("orders", "stream")

    def commit() -> None:
        restart_at(store, "orders", direct.strong_read_timestamp_ns(), [])

    with FaultProxy(stream.endpoint.target) as proxy, structlog.testing.capture_logs() as logs:
        connection = Connection(replace(stream, endpoint=plaintext(proxy.host)))
        clock = SpannerClock(connection.strong_read_timestamp_ns, every_s=2)
        supervisor = SimpleNamespace(
            name="orders",
            store=store,
            clock=clock,
            lease=SimpleNamespace(is_held=True, unrenewed_s=None),
            unrecorded=None,
            settings=SimpleNamespace(source=SimpleNamespace(service="Spanner")),
            source=SimpleNamespace(retention_ns=24 * HOUR_NS),
            stands_by=False,
        )
        poller = StatusPoller(cast(Any, supervisor), EpochHistory(), lambda *_: None)
        alerts = Alerts(store, "orders", clock.now_ns, 24 * HOUR_NS)
        commit()
        clock.start()
        poller.start()
        alerts.start()
        wait_until(lambda: poller.status().unready_reason() is None, 10)

        proxy.rules = [Freezes()]
        wait_until(lambda: bool(proxy.injected.get("freeze")), 10)
        wait_until(lambda: poller.status().source_silent_s is not None, 10)
        reason = poller.status().unready_reason()
        assert reason is not None
        assert reason.startswith("Spanner has not answered")
        # Its question is still outstanding when an epoch shows that Spanner answers.
        commit()
        took_s = wait_until(lambda: poller.status().unready_reason() is None, 30)
        assert took_s < RIGHT_WITHIN_S
        assert (poller.status().lag_ns or 0) < RIGHT_WITHIN_S * 10**9
        proxy.rules = []
        alerts.stop()
        poller.stop()
        clock.stop()
        connection.close()
    assert not logs, "the metadata store and the alerts had nothing to say"
    direct.close()
    store.close()
