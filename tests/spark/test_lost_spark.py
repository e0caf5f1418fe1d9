"""A Spark that hangs is started anew, and nothing is lost or doubled.

In tests/spark/test_remedies.py one dies.
"""

import os
import signal
from pathlib import Path

import pytest

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.running_processes import jvm_below
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

PARTITION_ALIVE_S = 20

_SECONDS_MAX = 300


@pytest.mark.long
def test_a_jvm_that_hangs_is_ended_and_started_anew(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    of_pipeline = settings(stream, tmp_path, format_rfc3339(start_ns))
    of_pipeline["epoch"]["progress_deadline"] = "10s"
    service = Service(of_pipeline, tmp_path, os.environ)
    service.start()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=2)

    def after_changes() -> int:
        load.run(transactions_per_second=20, seconds=2)
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=_SECONDS_MAX)
        return end_ns

    try:
        after_changes()
        jvm_below(service.pid).send_signal(signal.SIGSTOP)
        end_ns = after_changes()
        stopped = slackwater("stop", "-c", str(service.config))
        assert stopped.stdout.startswith("orders: has stopped")
        assert service.wait(_SECONDS_MAX) == 0
    finally:
        service.kill()
    require_equal(read_changelog(tmp_path / "changes"), truth_of(stream, start_ns, end_ns))
    log = service.log.read_text()
    assert "for 10 s no record was read, no file was written and no task ended" in log
