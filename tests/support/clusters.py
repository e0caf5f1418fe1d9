"""A standalone cluster of Spark on loopback, whose processes know each other by a secret."""

import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyspark

from slackwater.pipeline.spark.java import find_java
from slackwater.testing.emulator import free_port


class Cluster:
    """A standalone master and workers, by the spark-class of the pyspark package.

    Attributes:
        master: its URL.
        web: the address of its page.
        conf: what a pipeline on it needs in spark.conf.
        processes: the master's and the workers'.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        secret = secrets.token_hex(32)
        secret_file = _of_this_user(folder / "secret", f"{secret}\n")
        self._settings = _of_this_user(
            folder / "cluster.conf",
            f"spark.authenticate true\nspark.authenticate.secret {secret}\n"
            "spark.network.crypto.enabled true\nspark.ui.killEnabled false\n"
            "spark.master.ui.decommission.allow.mode DENY\n",
        )
        port, web = free_port(), free_port()
        self.master, self.web = f"spark://127.0.0.1:{port}", f"http://127.0.0.1:{web}"
        self.conf = {
            "spark.executor.memory": "512m",
            "spark.authenticate.secret.file": str(secret_file),
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
        self.processes: list[subprocess.Popen[bytes]] = []
        of_master = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
        self._spawn("master", *of_master)

    def add_worker(self) -> None:
        """Start a worker with one core."""
        name = f"worker{len(self.processes)}"
        self._spawn(
            name,
            *("--host", "127.0.0.1", "--cores", "1", "--memory", "1g", "--webui-port", "0"),
            *("--work-dir", str(self._folder / name), self.master),
        )

    def wait_for_workers(self, count: int) -> None:
        """Wait until the master has so many workers."""
        until = time.monotonic() + 60
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"{self.web}/json/") as answer:
                    if answer.read().count(b'"ALIVE"') >= count + 1:
                        return
            except (urllib.error.URLError, ConnectionError):
                pass
            time.sleep(0.2)
        raise AssertionError(f"the cluster did not get {count} workers")

    def stop(self) -> None:
        """Kill all of its processes."""
        for process in self.processes:
            kill_tree(process.pid)

    def _spawn(self, name: str, *arguments: str) -> None:
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
        self.processes.append(process)


@contextmanager
def cluster_of_two(folder: Path) -> Iterator[Cluster]:
    """Run a cluster with two workers."""
    made = Cluster(folder)
    try:
        made.add_worker()
        made.add_worker()
        made.wait_for_workers(2)
        yield made
    finally:
        made.stop()


def _of_this_user(file: Path, text: str) -> Path:
    file.touch(mode=0o600)
    file.write_text(text)
    return file


def kill_tree(pid: int) -> None:
    """Kill a process and those that it has started."""
    try:
        tree = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for part in tree:
        try:
            part.send_signal(signal.SIGKILL)
        except psutil.NoSuchProcess:
            continue
