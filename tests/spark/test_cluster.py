"""The same pipeline on a real Spark cluster: a master, two workers, PostgreSQL, a worker killed."""

from __future__ import annotations

import os
import secrets
import signal
import stat
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pyspark
import pytest

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.pipeline.spark.java import find_java
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.testing.emulator import free_port
from slackwater.timestamp import format_rfc3339
from tests.emulators import NewDatabase
from tests.services import settings
from tests.truths import require_equal, truth_of

SECONDS = 18
TRANSACTIONS_PER_SECOND = 40


class Cluster:
    """A standalone master and workers on loopback, by the spark-class of the pyspark package."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.secret_file = folder / "secret"
        secret = secrets.token_hex(32)
        self.secret_file.write_text(f"{secret}\n")
        self._settings = folder / "cluster.conf"
        self._settings.write_text(
            f"spark.authenticate true\nspark.authenticate.secret {secret}\n"
            "spark.network.crypto.enabled true\n"
        )
        self._port, self._web = free_port(), free_port()
        self.master = f"spark://127.0.0.1:{self._port}"
        self._processes: list[subprocess.Popen[bytes]] = []
        self._spawn(
            "master",
            "--host",
            "127.0.0.1",
            "--port",
            str(self._port),
            "--webui-port",
            str(self._web),
        )

    def add_worker(self) -> subprocess.Popen[bytes]:
        name = f"worker{len(self._processes)}"
        return self._spawn(
            name,
            *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
            *("--work-dir", str(self._folder / name), self.master),
        )

    def wait_for_workers(self, count: int) -> None:
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/") as answer:
                    if answer.read().count(b'"ALIVE"') >= count + 1:
                        return
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"the cluster did not get {count} workers")

    def stop(self) -> None:
        for process in self._processes:
            kill_tree(process.pid)

    def _spawn(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        home = Path(str(pyspark.__file__)).parent
        kind = "master.Master" if name == "master" else "worker.Worker"
        environ = {
            **os.environ,
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": sys.executable,
            "JAVA_HOME": str(find_java().resolve().parent.parent),
        }
        with (self._folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(home / "bin" / "spark-class"),
                    f"org.apache.spark.deploy.{kind}",
                    *("--properties-file", str(self._settings)),
                    *arguments,
                ],
                env=environ,
                stdout=log,
                stderr=log,
                # What a service manager gives them; the pipeline's own is 077.
                umask=0o022,
            )
        self._processes.append(process)
        return process


def kill_tree(pid: int) -> None:
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for part in tree:
        try:
            part.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue


def written(folder: Path) -> list[Path]:
    """Return the files and folders of a pipeline's output."""
    return [folder / "changes", *(folder / "changes").rglob("*")]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.stop()


@pytest.mark.long
@pytest.mark.timeout(800)
def test_a_worker_killed_in_the_middle_loses_nothing_and_doubles_nothing(
    cluster: Cluster,
    new_database: NewDatabase,
    new_postgres_url: Callable[[], str],
    tmp_path: Path,
) -> None:
    doomed, _ = cluster.add_worker(), cluster.add_worker()
    cluster.wait_for_workers(2)
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    pipeline_settings = settings(stream, tmp_path, format_rfc3339(start_ns))
    pipeline_settings["state"] = {"url": new_postgres_url()}
    pipeline_settings["spark"] = {
        "master": cluster.master,
        "conf": {
            "spark.executor.memory": "512m",
            "spark.authenticate.secret.file": str(cluster.secret_file),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        },
    }
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
