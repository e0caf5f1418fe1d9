"""A pipeline whose Spanner is behind mutual TLS."""

import os
from pathlib import Path

import pytest

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.endpoint import EMULATOR_VARIABLE
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import NewDatabase
from tests.support.epochs import endpoint_options
from tests.support.services import settings
from tests.support.tls_door import guarded_server
from tests.support.truths import require_equal, truth_of

PARTITION_ALIVE_S = 20


# That epochs go on is in tests/emulator/test_endpoints.py.
@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_pipeline_goes_on_with_renewed_certificates(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=2)
    environ = {name: value for name, value in os.environ.items() if name != EMULATOR_VARIABLE}
    with guarded_server(tmp_path, os.environ[EMULATOR_VARIABLE]) as guarded:
        values = settings(stream, tmp_path, format_rfc3339(start_ns))
        values["source"] |= endpoint_options(guarded.endpoint)
        service = Service(values, tmp_path, environ)
        service.start()
        for turn in range(2):
            if turn:
                guarded.renew()
            load.run(transactions_per_second=20, seconds=2)
            end_ns = connection.strong_read_timestamp_ns()
            service.wait_for_watermark(end_ns, seconds_max=180)
        assert service.drain() == 0
    assert "failed, will try again" not in service.log.read_text()
    require_equal(read_changelog(tmp_path / "changes"), truth_of(stream, start_ns, end_ns))
