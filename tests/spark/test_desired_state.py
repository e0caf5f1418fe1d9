"""Kill, pause, resume and Ctrl-C, and several pipelines in a process; one fails alone.

The quick start drains, and tests/spark/test_remedies.py stops.
"""

import json
import os
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339
from tests.proofs.kills import Moment, Watched
from tests.support.collector import Collector, collecting
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.reader_processes import readers
from tests.support.reader_processes import short_folder as short_folder
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

# They split and merge under each of its processes, and in minutes they do not become too many.
PARTITION_ALIVE_S = 6
# A busy machine takes minutes to start Spark.
SECONDS_MAX = 240


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


def test_a_pipeline_is_killed_paused_resumed_and_interrupted(
    new_database: NewDatabase, collector: Collector, tmp_path: Path, short_folder: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipeline_settings = settings(stream, tmp_path, format_rfc3339(start_ns))
    pipeline_settings["http"] = {"listen": "127.0.0.1:0"}
    pipeline_settings["log"] = {"format": "json"}
    pipeline_settings["trace"] = {"endpoint": collector.endpoint}
    service = Service(pipeline_settings, tmp_path, os.environ)
    service.start()
    service.wait_for_watermark(start_ns, seconds_max=SECONDS_MAX)
    load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=5)
    kill_within_an_epoch(service, load, tmp_path)
    killed_ns = service.low_watermark_ns() or 0
    service.start()
    service.wait_for_watermark(killed_ns + 1, seconds_max=SECONDS_MAX)
    _wait_for_state(service, "running")
    assert _get(service, "/healthz") == "ok\n"
    _wait_until_ready(service)
    paused_ns = require_a_pause(service)
    pipeline_settings["epoch"]["reading"] = "continuous"
    service = Service(pipeline_settings, tmp_path, os.environ | {"TMPDIR": str(short_folder)})
    service.start()
    load.run(transactions_per_second=20, seconds=2)
    require_a_pause_that_outlives_its_process(service, connection, paused_ns)
    require_metrics(service)
    require_a_pause_that_keeps_the_query(service, connection)
    load.run(transactions_per_second=20, seconds=1)
    end_ns = connection.strong_read_timestamp_ns()
    service.wait_for_watermark(end_ns, seconds_max=SECONDS_MAX)
    require_an_end_by_ctrl_c(service, short_folder)
    assert _request("drain", service) == "orders: no process runs it"

    truth = truth_of(stream, start_ns, end_ns, Dialect.GOOGLE_STANDARD_SQL)
    changes = tmp_path / "changes"
    require_equal(read_changelog(changes), truth)
    assert {file.suffix for file in changes.glob("epoch=*/*")} == {".parquet"}, (
        "the tasks that read write by themselves: Spark adds checksums"
    )
    require_span_trees(collector)
    log = service.log.read_text()
    # Spark's lines look like the service's, from the first one on.
    assert not re.search(r"^(\d\d/\d\d/\d\d|Using Spark|Setting)", log, re.M)
    assert "customer 1" not in log, "a record's value is in the log"
    assert {line["pipeline"] for line in _lines(service) if line["event"] == "epoch"} == {"orders"}


def kill_within_an_epoch(service: Service, load: Load, folder: Path) -> None:
    """Kill a service while its tasks read; `make faults` does at other moments, and more often."""
    stop = threading.Event()
    rate: dict[str, Any] = {"transactions_per_second": 20, "seconds": SECONDS_MAX, "stop": stop}
    writer = threading.Thread(target=load.run, kwargs=rate)
    writer.start()
    try:
        Watched(folder).wait(Moment.READING)
        service.kill()
    finally:
        stop.set()
        writer.join()


def require_a_pause(service: Service) -> int | None:
    """Pause a service, and end its process; return the low watermark, which has to stay."""
    assert _request("pause", service).startswith("orders: is paused")
    paused_ns = service.low_watermark_ns()
    time.sleep(2)
    assert service.drain() == 0
    assert service.low_watermark_ns() == paused_ns
    return paused_ns


def require_a_pause_that_outlives_its_process(
    service: Service, connection: Connection, paused_ns: int | None
) -> None:
    """The pipeline is paused, not its process: a new one stays paused until it is resumed.

    Of one that is stopped, tests/databases/test_store.py holds the same.
    """
    _wait_for_state(service, "paused")
    assert service.low_watermark_ns() == paused_ns
    assert _request("resume", service) == "orders: goes on"
    service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=SECONDS_MAX)


def require_an_end_by_ctrl_c(service: Service, folder: Path) -> None:
    """The program drains; Spark, which is not in its process group, is not stopped meanwhile."""
    assert readers(folder)
    log = service.log.read_text()
    process = psutil.Process(service.pid)
    # A terminal sends Ctrl-C to the whole foreground process group.
    for one in (process, *process.children(recursive=True)):
        with suppress(ProcessLookupError):
            if os.getpgid(one.pid) == os.getpgid(process.pid):
                os.kill(one.pid, signal.SIGINT)
    assert service.wait(SECONDS_MAX) == 0
    for reader in readers(folder):
        reader.wait(SECONDS_MAX)
    at_the_end = service.log.read_text().removeprefix(log)
    assert '"event": "stopped"' in at_the_end
    assert "Traceback" not in at_the_end


def require_metrics(service: Service) -> None:
    """Require a running state and metrics above zero."""
    _wait_for_state(service, "running")
    metrics = _get(service, "/metrics")
    assert 'slackwater_state{pipeline="orders",state="running"} 1.0' in metrics
    for name in ("records_total", "mods_total", "freshness_seconds_bucket", "bytes_total"):
        values = re.findall(rf"^slackwater_{name}{{.*}} (.*)$", metrics, re.MULTILINE)
        assert max(map(float, values)) > 0, name


def require_a_pause_that_keeps_the_query(service: Service, connection: Connection) -> None:
    """Pause and resume; the pipeline goes on at once, without starting another query."""
    begun = _events(service)["running"]
    assert _request("pause", service).startswith("orders: is paused")
    assert _request("resume", service) == "orders: goes on"
    _wait_for_state(service, "running")
    service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=SECONDS_MAX)
    assert _events(service)["running"] == begun
    assert _events(service)["failed, will try again"] == 0


@pytest.mark.long
def test_one_of_two_pipelines_in_a_process_fails_alone_and_is_resumed(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    connection = Connection(stream)
    pipelines_settings = settings(
        stream, tmp_path, format_rfc3339(connection.strong_read_timestamp_ns())
    )
    del pipelines_settings["pipeline"]
    sink = pipelines_settings.pop("sink")
    late = {name: f"{path}-late" for name, path in sink.items()}
    pipelines_settings["pipelines"] = {
        "orders": {"sink": sink},
        "late": {"sink": late, "source": {"change_stream": "LateStream", "start": "now"}},
    }
    pipelines_settings["http"] = {"listen": "127.0.0.1:0"}
    service = Service({**pipelines_settings, "pipeline": "orders"}, tmp_path, os.environ)
    service.config.write_text(yaml.safe_dump(pipelines_settings))
    service.start()
    _wait_for_state(service, "failed permanently", "late")
    standing = json.loads(_get(service, "/api/pipelines/late"))
    assert "has no change stream 'LateStream'. It has: DemoStream" in standing["reason"]
    service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=SECONDS_MAX)
    _wait_for_state(service, "running")
    assert _get(service, "/readyz").startswith("late: ")

    update_ddl(stream, ["CREATE CHANGE STREAM LateStream FOR ALL"])
    assert _request("resume", service, "--pipeline", "late").startswith("late: ")
    _wait_for_state(service, "running", "late")
    _wait_until_ready(service)
    assert slackwater("stop", "-c", str(service.config)).returncode == 2
    said = _request("pause", service, "--pipeline", "late")
    resume = f"slackwater resume -c {service.config} --pipeline late"
    assert said == f"late: is paused; `{resume}` lets it go on"
    os.kill(service.pid, signal.SIGTERM)
    assert service.wait(SECONDS_MAX) == 0


def require_span_trees(collector: Collector) -> None:
    """Each epoch has its stages, one after the other, and partition queries below the reading."""
    epochs = {span.span_id: span for span in collector.named("epoch")}
    assert epochs
    reads = {span.span_id: span for span in collector.named("read")}
    assert {span.parent_span_id for span in reads.values()} == set(epochs)
    for stage in ("choose", "plan", "sink", "commit"):
        assert len(collector.named(stage)) == len(epochs)
    queries = collector.named("partition query")
    assert {span.parent_span_id for span in queries} <= set(reads)
    assert len(queries) >= len(epochs)
    for query in queries:
        epoch = epochs[reads[query.parent_span_id].parent_span_id]
        # The task's clock, and milliseconds of Spark's.
        assert epoch.start_time_unix_nano <= query.start_time_unix_nano + 10**9
        assert query.end_time_unix_nano <= epoch.end_time_unix_nano + 10**9


def _lines(service: Service) -> list[dict[str, Any]]:
    """Return the log's lines of JSON, without those of the JVM."""
    lines = service.log.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def _events(service: Service) -> Counter[str]:
    return Counter(line["event"] for line in _lines(service))


def _request(verb: str, service: Service, *arguments: str) -> str:
    """Run a command against the service, and return what it prints."""
    # It fails if the service has not obeyed within a minute.
    done = slackwater(verb, "-c", str(service.config), *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _wait_for_state(service: Service, state: str, pipeline: str = "orders") -> None:
    until = time.monotonic() + SECONDS_MAX
    shown: Any = None
    while time.monotonic() < until:
        try:
            pipelines = json.loads(_get(service, "/api/pipelines"))
        except (OSError, IndexError):
            pipelines = []
        # Until the pipeline has an owner, the store may have the state of a killed process.
        shown = {
            standing["pipeline"]: standing["state"]
            for standing in pipelines
            if standing["is_owner"]
        }
        if shown.get(pipeline) == state:
            return
        time.sleep(0.2)
    raise AssertionError(f"{shown}, not {state}:\n{service.log.read_text()[-3_000:]}")


def _wait_until_ready(service: Service) -> None:
    """Wait until all is well: a busy machine makes a query look stalled for a moment."""
    until = time.monotonic() + SECONDS_MAX
    while (answer := _get(service, "/readyz")) != "ok\n":
        assert time.monotonic() < until, answer
        time.sleep(0.2)


def _get(service: Service, path: str) -> str:
    """Get a page from the process that was started last, which chose its own port."""
    address = re.findall(r"http://127\.0\.0\.1:\d+", service.log.read_text())[-1]
    try:
        with urllib.request.urlopen(address + path, timeout=10) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
