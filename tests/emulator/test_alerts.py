"""The running pipeline's watch, with a real clock of Spanner's and a real store."""

import time
from pathlib import Path

import structlog

from slackwater.pipeline.alerts import Alerts
from slackwater.reader.transport.connection import Connection
from slackwater.state.commit import restart_at
from slackwater.state.store import Store
from tests.support.emulators import NewDatabase

SECOND_NS = 10**9


def test_a_pipeline_that_falls_behind_is_warned_of_while_there_is_time_left(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    connection = Connection(new_database())
    clock_ns = connection.strong_read_timestamp_ns()
    store = Store.open(f"sqlite:///{tmp_path / 'state.db'}", migrate=True)
    store.ensure_pipeline("behind", "stream")
    restart_at(store, "behind", clock_ns - 3_600 * SECOND_NS, [])
    alerts = Alerts(store, "behind", connection.strong_read_timestamp_ns, 5_000 * SECOND_NS)
    with structlog.testing.capture_logs() as logs:
        alerts.start()
        until = time.monotonic() + 240
        while not logs and time.monotonic() < until:
            time.sleep(0.1)
        alerts.stop()
    assert logs[0]["event"] == "falling behind"
    assert logs[0]["log_level"] == "warning"
    assert 0.72 <= logs[0]["retention_used"] < 0.74
    assert 0.37 < logs[0]["hours_left"] <= 0.39
    store.close()
    connection.close()
