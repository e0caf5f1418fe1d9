"""A pipeline that fails for a while starts again by itself, and says meanwhile why it failed."""

import os
import time
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.models import PipelineState
from slackwater.state.store import Store
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.faults.proxy import FaultProxy, Refuses
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of


@pytest.mark.long
@pytest.mark.timeout(200)
def test_a_failed_pipeline_goes_on_when_the_cause_is_gone(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    with FaultProxy(stream.endpoint.target) as proxy:
        pipeline_settings = settings(replace(stream), tmp_path, format_rfc3339(start_ns))
        service = Service(
            pipeline_settings, tmp_path, {**os.environ, "SPANNER_EMULATOR_HOST": proxy.host}
        )
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=90)
        proxy.rules = [Refuses(grpc.StatusCode.PERMISSION_DENIED)]
        wait_for_state(pipeline_settings["state"]["url"], PipelineState.FAILED, "PERMISSION_DENIED")
        proxy.rules = []
        Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=2).run(transactions_per_second=30, seconds=3)
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=60)
        wait_for_state(pipeline_settings["state"]["url"], PipelineState.RUNNING, "")
        assert service.drain() == 0
    log = service.log.read_text()
    assert "failed, will try again" in log
    assert "Exception in task" in log
    # Stack traces, too, stay on the line of their event.
    begins = ("timestamp=", "NOTE: Picked up JDK_JAVA_OPTIONS", "WARNING: Using incubator")
    assert [line for line in log.splitlines() if not line.startswith(begins)] == []
    truth = truth_of(stream, start_ns, end_ns)
    require_equal(read_changelog(tmp_path / "changes"), truth)


def wait_for_state(url: str, state: PipelineState, reason: str) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        store = Store.open(url, migrate=False)
        pipeline = store.pipeline("orders")
        store.close()
        if pipeline is not None and pipeline.state is state and reason in pipeline.state_reason:
            return
        time.sleep(0.1)
    raise AssertionError(f"the pipeline is {pipeline and pipeline.state}, not {state}")
