"""The same pipeline on a real Spark cluster: a master, two workers, PostgreSQL, a worker killed."""

import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.clusters import cluster_of_two, kill_tree
from tests.support.emulators import NewDatabase
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

SECONDS = 18
TRANSACTIONS_PER_SECOND = 40


def written(folder: Path) -> list[Path]:
    """Return the files and folders of a pipeline's output."""
    return [folder / "changes", *(folder / "changes").rglob("*")]


@pytest.mark.long
@pytest.mark.timeout(800)
def test_a_worker_killed_in_the_middle_loses_nothing_and_doubles_nothing(
    new_database: NewDatabase, new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipeline_settings = settings(stream, tmp_path, format_rfc3339(start_ns))
    pipeline_settings["state"] = {"url": new_postgres_url()}
    with cluster_of_two(tmp_path) as cluster:
        pipeline_settings["spark"] = {"master": cluster.master, "conf": cluster.conf}
        service = Service(pipeline_settings, tmp_path, os.environ)
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=300)
        writer = threading.Thread(
            target=lambda: Load(stream, dialect, seed=9).run(
                transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=SECONDS
            )
        )
        writer.start()
        time.sleep(SECONDS / 2)
        doomed = cluster.processes[1]
        assert doomed.poll() is None
        kill_tree(doomed.pid)
        writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=300)
        assert service.drain() == 0
    truth = truth_of(stream, start_ns, end_ns)
    output = read_changelog(tmp_path / "changes")
    assert len(truth.records) >= SECONDS * TRANSACTIONS_PER_SECOND
    require_equal(output, truth)
    others = [path for path in written(tmp_path) if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert not others, "made by an executor with the modes of its own umask"
