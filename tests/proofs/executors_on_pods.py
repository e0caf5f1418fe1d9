"""The chart's shape `executors` on pods, under load, with kills and a rolling update.

`python -m tests.proofs.executors_on_pods` runs the chart's two drivers and the owner's two
executors on a stand-in for a kubelet and an API server, which knows the chart's Role and refuses
pods that are not `restricted`. With `--control-plane` Kubernetes' own API server, controllers and
scheduler are in the place of the latter. Each pod has its limit of memory. The output is a Delta
table in an object store, the metadata store is PostgreSQL. An executor and the owner are killed,
the pods are replaced one after the other, and the owner drains. In the end the output has to equal
the truth. It has to be started by root.
"""

import argparse
import json
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
import yaml
from deltalake import DeltaTable

from slackwater.demo.load import Load
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.store import Store
from slackwater.state.tables import pipelines
from slackwater.timestamp import format_rfc3339
from tests.pods.cluster import Drivers
from tests.pods.control_plane.deployment import on_control_plane
from tests.pods.deployment import NAMESPACE, Deployment, stand_ins
from tests.pods.kubelet import RunningPod, wait_until
from tests.support.charts import example, of_kind, render
from tests.support.emulators import own_database
from tests.support.object_stores import ServedStore, s3
from tests.support.postgres import running_server
from tests.support.truths import require_equal, truth_of
from tests.support.tunnels import port_of

TRANSACTIONS_PER_SECOND = 60
PORTS = {8080, 7078, 7079}
EXECUTOR = {"instances": 2, "cores": 1, "heapMiB": 512, "jvmOverheadMiB": 512}
WORKER_MIB = 400
# The goals for the time until the next committed epoch.
EXECUTOR_KILLED_S_MAX = 15
DRIVER_KILLED_S_MAX = 30
# On a machine that has much else to do.
_START_S_MAX = 600
_EPOCH_S_MAX = 300
_FOLDER = "changes"


def values_for(stream: ChangeStream, start: str, store: ServedStore) -> dict[str, Any]:
    """Return the chart's values: the example's, with another object store and other sizes."""
    return example(
        "executors",
        env=[
            {"name": "SPANNER_EMULATOR_HOST", "value": stream.endpoint.target},
            # In the settings file, which all users of a pod can read, a key is refused.
            {"name": "SLACKWATER_SINK_STORAGE_OPTIONS", "value": json.dumps(store.options)},
            # Six JVMs share this machine, and none runs for long.
            {"name": "JDK_JAVA_OPTIONS", "value": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"},
        ],
        executor=EXECUTOR,
        pythonWorkerMiB=WORKER_MIB,
        driver={"cores": 2, "heapMiB": 1024},
        settings={
            "source": {
                "project": stream.project,
                "instance": stream.instance,
                "database": stream.database,
                "change_stream": stream.change_stream,
                "start": start,
            },
            "sink": {
                "format": "delta",
                "path": f"{store.path}/{_FOLDER}",
            },
        },
    )


class Watermark:
    """The pipeline's low watermark, as the metadata store has it."""

    def __init__(self, url: str) -> None:
        self._engine = sa.create_engine(url)

    def now_ns(self) -> int:
        """Return up to which commit timestamp all records are committed."""
        with self._engine.connect() as connection:
            value = connection.execute(sa.select(pipelines.c.low_watermark_ns)).scalar()
        return value or 0

    def next_epoch_s(self, after_ns: int, seconds_max: float) -> float:
        """Return after how many seconds everything before a time is committed."""
        return wait_until(lambda: self.now_ns() >= after_ns, "an epoch", seconds_max)


class Proof:
    """The story that is told, and what it took."""

    def __init__(
        self,
        deployment: Deployment,
        drivers: Drivers,
        watermark: Watermark,
        connection: Connection,
    ) -> None:
        self.deployment, self.drivers = deployment, drivers
        self.watermark, self.connection = watermark, connection
        self.ports: set[int] = set()
        self.missed: list[str] = []

    def run(self) -> None:
        deployment = self.deployment
        self._until_ready()
        self._killed("executor", deployment.executors()[0], EXECUTOR_KILLED_S_MAX)
        wait_until(lambda: len(deployment.executors()) == 2, "a new executor", 60)
        self._killed("owner", deployment.owner(), DRIVER_KILLED_S_MAX)
        self._until_standby()
        now_ns = self.connection.strong_read_timestamp_ns()
        began = time.monotonic()
        gaps = Gaps(self.watermark)
        self.drivers.roll({"rolled": "1"}, self._is_ready_by_name, seconds_max=_START_S_MAX)
        wait_until(deployment.has_owner, "an owner after the update", 120)
        self.watermark.next_epoch_s(now_ns, _EPOCH_S_MAX)
        took_s = time.monotonic() - began
        print(f"rolling update: {took_s:.0f} s, longest time without an epoch {gaps.end():.1f} s")

    def _until_ready(self) -> None:
        began = time.monotonic()
        wait_until(self.deployment.has_owner, "an owner that is ready", _START_S_MAX)
        print(f"ready after {time.monotonic() - began:.0f} s")
        self._until_standby()
        for pod in self.deployment.executors():
            require_executor(pod.body)

    def _until_standby(self) -> None:
        wait_until(
            lambda: all(map(self._is_ready, self.deployment.pods("driver"))),
            "a standby",
            _START_S_MAX,
        )
        for pod in self.deployment.pods("driver") + self.deployment.pods("executor"):
            self.ports |= pod.listens_on()

    def _is_ready_by_name(self, name: str) -> bool:
        return any(
            self._is_ready(pod) for pod in self.deployment.pods("driver") if pod.name == name
        )

    def _is_ready(self, pod: RunningPod) -> bool:
        return pod.get("/readyz?standby=ready")[0] == 200

    def _killed(self, what: str, pod: RunningPod, seconds_max: float) -> None:
        pod.crash()
        after_ns = self.connection.strong_read_timestamp_ns()
        took_s = self.watermark.next_epoch_s(after_ns, _EPOCH_S_MAX)
        print(f"{what} {pod.name} killed: {took_s:.1f} s until the next epoch", flush=True)
        if took_s > seconds_max:
            self.missed.append(f"{what} killed: {took_s:.1f} s, and the goal is {seconds_max} s")


def require_executor(body: dict[str, Any]) -> None:
    """Assert that Spark made an executor's pod as the chart's template and sizes have it."""
    spec = body["spec"]
    assert body["metadata"]["namespace"] == NAMESPACE
    assert spec["serviceAccountName"] == "orders-slackwater-executor"
    assert spec["automountServiceAccountToken"] is False
    [container] = spec["containers"]
    # Who may read pods does not learn Spark's secret.
    assert not [each for each in container["env"] if "AUTH_SECRET" in each["name"]]
    heap, overhead, worker = (EXECUTOR["heapMiB"], EXECUTOR["jvmOverheadMiB"], WORKER_MIB)
    memory = f"{heap + overhead + EXECUTOR['cores'] * worker}Mi"
    limits = container["resources"]["limits"]
    assert (limits["memory"], limits["cpu"]) == (memory, str(EXECUTOR["cores"])), limits


def require_no_more_rights(values: dict[str, Any], asked: set[tuple[str, str, str]]) -> None:
    """Assert that the chart's Role allows what the drivers asked for, and nothing else."""
    [role] = of_kind(render(values, namespace=NAMESPACE), "Role")
    rights = {(v, r) for rule in role["rules"] for v in rule["verbs"] for r in rule["resources"]}
    used = {(verb, resource) for _, verb, resource in asked}
    assert rights == used, f"unused: {rights - used}, not in the Role: {used - rights}"


class Gaps:
    """Watches how long no epoch is committed."""

    def __init__(self, watermark: Watermark) -> None:
        self._watermark = watermark
        self._longest_s = 0.0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def end(self) -> float:
        """Stop watching, and return the longest time in seconds."""
        self._stopped.set()
        self._thread.join()
        return self._longest_s

    def _run(self) -> None:
        last, since = self._watermark.now_ns(), time.monotonic()
        while not self._stopped.wait(0.1):
            now = self._watermark.now_ns()
            if now != last:
                self._longest_s = max(self._longest_s, time.monotonic() - since)
                last, since = now, time.monotonic()


def prove(seconds: int, cluster_in: Callable[[Path], AbstractContextManager[Deployment]]) -> None:
    """Run the proof.

    Args:
        seconds: of load, at most.
        cluster_in: starts a cluster, with its files in a folder.

    Raises:
        AssertionError: the output differs from the truth, or a goal is missed.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slackwater-pods-")))
        folder.chmod(0o755)
        stream = stack.enter_context(own_database())
        store_url = stack.enter_context(port_of(stack.enter_context(running_server())))
        Store.open(store_url, migrate=True).close()
        store = stack.enter_context(s3())
        connection = Connection(stream)
        start_ns = connection.strong_read_timestamp_ns()
        deployment = stack.enter_context(cluster_in(folder))
        cluster, watermark = deployment.cluster, Watermark(store_url)
        values = values_for(stream, format_rfc3339(start_ns), store)
        drivers = deployment.apply(values, store_url)
        stack.callback(drivers.stop)
        drivers.start()
        stop = threading.Event()
        writer = threading.Thread(target=_write, args=(stream, seconds, stop))
        writer.start()
        proof = Proof(deployment, drivers, watermark, connection)
        try:
            proof.run()
        except BaseException:
            for pod in deployment.kubelet.pods.values():
                print(f"--- {pod.name}\n{pod.log.read_text()[-4_000:]}", file=sys.stderr)
            print(f"refused: {cluster.refused}\nports: {proof.ports}", file=sys.stderr)
            raise
        finally:
            stop.set()
            writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        watermark.next_epoch_s(end_ns, _EPOCH_S_MAX)
        began = time.monotonic()
        drivers.stop()
        wait_until(lambda: not deployment.pods("driver"), "the end of the drivers", 120)
        print(f"drained in {time.monotonic() - began:.1f} s")
        wait_until(lambda: not deployment.pods("executor"), "the end of the executors", 60)
        require_equal(read_delta(store), truth_of(stream, start_ns, end_ns))
        for pod in deployment.kubelet.pods.values():
            print(pod.memory_used())
            assert not pod.oom_kills, pod.name
        assert proof.ports <= PORTS, f"ports that the NetworkPolicy does not allow: {proof.ports}"
        assert not cluster.refused, cluster.refused
        print(yaml.safe_dump({"asked": sorted(map(" ".join, cluster.asked))}))
        require_no_more_rights(values, cluster.asked)
        print("the output equals the truth")
        assert not proof.missed, proof.missed


def read_delta(store: ServedStore) -> pa.Table:
    """Read the Delta table with a reader that did not write it."""
    table = DeltaTable(f"{store.path}/{_FOLDER}", storage_options=store.options)
    return table.to_pyarrow_table()


def _write(stream: ChangeStream, seconds: int, stop: threading.Event) -> None:
    Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=21).run(
        transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=seconds, stop=stop
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1_200, help="of load, at most")
    parser.add_argument(
        "--control-plane", action="store_true", help="Kubernetes' own in the place of a stand-in"
    )
    # So that no pod is left when this process is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    arguments = parser.parse_args()
    prove(arguments.seconds, on_control_plane if arguments.control_plane else stand_ins)
