"""The chart's pods under their limits of memory, which the kernel enforces.

`python -m tests.proofs.memory_limits` runs the shape `one-pod` with the chart's own sizes on a
stand-in for a kubelet, twice: 10,000 partitions and 5 million records in the first epoch, then live
epochs with a thousand records a second, then the same pod again. A synthetic server sends the
records. No process may be killed for its memory, and as many records have to be written as were
sent. Root has to start it.

    python -m tests.proofs.memory_limits [--shape executors] [--format delta] [--store s3]
        [--reading continuous] [--runs 2] [--partitions 10000] [--records 5000000]
"""

import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow.dataset as ds
from deltalake import DeltaTable

from slackwater.reader.change_stream import Dialect
from slackwater.state.epochs import last_epochs
from slackwater.state.models import Epoch
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339
from tests.pods.deployment import Deployment, stand_ins
from tests.pods.kubelet import RunningPod, wait_until
from tests.pods.memory_cgroup import MemoryCgroup
from tests.support.charts import example
from tests.support.object_stores import BUCKET, ServedStore, s3
from tests.support.postgres import running_server
from tests.support.programs import parsed_options
from tests.support.tunnels import port_of
from tests.synthetic.rows import JoinedRows, PatternRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

# What the first epoch covers.
BURST_US: Final = 60_000_000
BEGAN_US: Final = 120_000_000
LIVE_PER_SECOND: Final = 1_000
VOLUME: Final = "/var/lib/slackwater"
_S_MAX: Final = 3_600
_LIVE_S: Final = 60
_EVERY_S: Final = 2
_LOOK_S: Final = 0.2
_MIB: Final = 1 << 20
# Python's processes, by a part of their commands.
_KINDS: Final = {
    "reader_process": "reader process",
    "pyspark.worker": "worker",
    "python_streaming_source_runner": "planner",
    "pyspark.sql.worker": "look-up",
    "/slackwater run": "slackwater",
}


@dataclass(frozen=True, slots=True)
class Load:
    """What is read.

    Attributes:
        partitions: how many there are.
        records: of the first epoch.
        start_us: when the first epoch begins.
    """

    partitions: int
    records: int
    start_us: int

    def script(self) -> Script:
        """Return the change stream."""
        partitions = [
            ScriptedPartition(f"p{number:06}", self.start_us - 10_000_000, rows=self._rows(number))
            for number in range(self.partitions)
        ]
        return Script(Dialect.GOOGLE_STANDARD_SQL, tuple(partitions), rows_per_message=20)

    def sent(self, watermark_ns: int) -> int:
        """Return how many records are committed through a low watermark."""
        after_us = watermark_ns // 1_000 + 1
        return sum(self._rows(number).first_at(after_us) for number in range(self.partitions))

    def _rows(self, number: int) -> JoinedRows:
        each = self.records // self.partitions
        burst = PatternRows(number, self.start_us + 1_000, BURST_US // (each + 1), each)
        every_us = 1_000_000 * self.partitions // LIVE_PER_SECOND
        # The partitions take turns, as they do live.
        first_us = self.start_us + BURST_US + 1 + every_us * number // self.partitions
        return JoinedRows(burst, PatternRows(number, first_us, every_us, 3_600_000_000 // every_us))


@dataclass(frozen=True, slots=True)
class Kind:
    """How the pods run.

    Attributes:
        shape: of the chart.
        file_format: the output's.
        in_s3: the output is in an object store, and not on a volume.
        reading: epoch.reading.
    """

    shape: str
    file_format: str
    in_s3: bool
    reading: str

    def values(self, load: Load, host: str, store: ServedStore | None) -> dict[str, Any]:
        """Return the chart's values: the example's, with the chart's own sizes."""
        sink: dict[str, Any] = {"format": self.file_format, "path": f"{VOLUME}/changes"}
        sink["checkpoint"] = f"{VOLUME}/checkpoint"
        if store is not None:
            sink = {"format": self.file_format, "path": f"{store.path}/changes"}
            sink["storage_options"] = store.options
        epoch: dict[str, Any] = {"target_records": load.records, "target_time": "1h"}
        if self.reading == "continuous":
            # More partitions need it: see docs/sizing.md.
            epoch |= {"reading": "continuous", "heartbeat": "10s"}
        return example(
            self.shape,
            replicas=1,
            volume={"enabled": True, "existingClaim": "data"},
            env=[{"name": "SPANNER_EMULATOR_HOST", "value": host}],
            settings={
                "source": {
                    "project": "memory-project",
                    "instance": "memory",
                    "database": "memory",
                    "change_stream": CHANGE_STREAM,
                    "start": format_rfc3339(load.start_us * 1_000),
                },
                "sink": sink,
                "epoch": epoch,
                # The epochs are counted in the end.
                "state": {"keep": "1d"},
            },
        )


@dataclass
class Watched:
    """Looks at the memory of all pods, and at what has it when it is most."""

    deployment: Deployment
    most: dict[str, int] = field(default_factory=Counter)
    parts: dict[str, dict[str, int]] = field(default_factory=dict)
    stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look for the time of the context."""
        thread = threading.Thread(target=self._run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join()

    def _run(self) -> None:
        while not self.stop.wait(_LOOK_S):
            for pod in list(self.deployment.kubelet.pods.values()):
                held = pod.memory.look()
                # Parts are dear to find out.
                name = pod.folder.name
                if held > self.most[name] * 1.02:
                    self.most[name] = held
                    self.parts[name] = parts_of(pod.memory)

    def show(self) -> None:
        """Print what each pod took."""
        for pod in self.deployment.kubelet.pods.values():
            print(pod.memory_used())
            parts = sorted(self.parts.get(pod.folder.name, {}).items(), key=lambda part: -part[1])
            print("   ", ", ".join(f"{name} {size // _MIB}" for name, size in parts), flush=True)


def parts_of(memory: MemoryCgroup) -> dict[str, int]:
    """Return the bytes of each kind of process; what processes share is divided among them."""
    sizes: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    for pid in memory.processes():
        try:
            process = psutil.Process(pid)
            name = _kind_of(process.name(), " ".join(process.cmdline()))
            sizes[name] += process.memory_full_info().pss
            numbers[name] += 1
        except (psutil.Error, OSError):
            # It has just ended.
            continue
    return {f"{numbers[name]} x {name}": size for name, size in sizes.items()}


def _kind_of(name: str, command: str) -> str:
    for part, kind in _KINDS.items():
        if part in command and name in ("python", "python3", "slackwater"):
            return kind
    return command[-80:] if name.startswith("python") else name


class Run:
    """One life of the chart's pods."""

    def __init__(self, kind: Kind, load: Load, folder: Path, stack: ExitStack) -> None:
        self._kind, self._load, self._folder = kind, load, folder
        self._s3 = stack.enter_context(s3()) if kind.in_s3 else None
        self._store_url = f"sqlite:///{folder / 'claim-data' / 'state.db'}"
        if kind.shape == "executors":
            self._store_url = stack.enter_context(port_of(stack.enter_context(running_server())))
            Store.open(self._store_url, migrate=True).close()
        host = stack.enter_context(synthetic_process(load.script()))
        self._deployment = stack.enter_context(stand_ins(folder))
        self._drivers = self._deployment.apply(
            kind.values(load, host, self._s3),
            self._store_url if kind.shape == "executors" else None,
        )
        self._watched = Watched(self._deployment)

    def prove(self) -> None:
        """Run the pods, and compare.

        Raises:
            AssertionError: a process was killed, or the records differ.
            TimeoutError: the pipeline does not get there.
        """
        with self._watched.watching():
            try:
                self._drivers.start()
                self._until(self._load.start_us * 1_000, "the first epoch")
                self._until(time.time_ns(), "all that lies in the past")
                self._until(time.time_ns() + _LIVE_S * 10**9, "live epochs")
                [pod] = self._deployment.pods("driver")
                self._deployment.cluster.objects.delete("pods", "cdc", pod.name)
                wait_until(lambda: not pod.is_running(), "the drain", _S_MAX)
                self._until(time.time_ns() + _LIVE_S * 10**9, "live epochs of the next pod")
                self._drivers.stop()
                wait_until(lambda: not self._deployment.pods("driver"), "the drain", _S_MAX)
            except BaseException:
                for pod in self._deployment.kubelet.pods.values():
                    print(f"--- {pod.name}\n{pod.log.read_text()[-6_000:]}", file=sys.stderr)
                raise
            finally:
                self._watched.show()
        self._compare()

    def _until(self, watermark_ns: int, what: str) -> None:
        began = time.monotonic()
        wait_until(lambda: self._is_beyond(watermark_ns), what, _S_MAX)
        print(f"{what}: {time.monotonic() - began:.0f} s", flush=True)

    def _is_beyond(self, watermark_ns: int) -> bool:
        killed = [pod.name for pod in self._deployment.kubelet.pods.values() if _has_failed(pod)]
        assert not killed, f"pods that were killed or ended: {killed}"
        # Looking costs what the pods should have.
        time.sleep(_EVERY_S)
        epochs = self._epochs()
        return bool(epochs) and epochs[-1].end_ns > watermark_ns

    def _epochs(self) -> list[Epoch]:
        if not any(pod.get("/readyz")[0] == 200 for pod in self._deployment.pods("driver")):
            return []
        store = Store.open(self._store_url, migrate=False)
        try:
            return last_epochs(store, "orders", limit=100_000)
        finally:
            store.close()

    def _compare(self) -> None:
        store = Store.open(self._store_url, migrate=False)
        epochs = last_epochs(store, "orders", limit=100_000)
        store.close()
        landed = self._landed()
        sent = self._load.sent(epochs[-1].end_ns)
        most, seconds = max((epoch.records, epoch.seconds) for epoch in epochs)
        live = sorted(epoch.seconds for epoch in epochs[-10:])
        print(
            f"{len(epochs)} epochs, the largest with {most} records in {seconds:.0f} s; the last"
            f" ten took {live[0]:.1f} to {live[-1]:.1f} s; written {landed}, sent {sent}",
            flush=True,
        )
        assert landed == sent == sum(epoch.records for epoch in epochs)
        assert most >= self._load.records

    def _landed(self) -> int:
        path = str(self._folder / "claim-data" / "changes")
        if self._kind.file_format == "delta":
            if self._s3 is not None:
                options = self._s3.options
                table = DeltaTable(f"{self._s3.path}/changes", storage_options=options)
            else:
                table = DeltaTable(path)
            return int(table.to_pyarrow_dataset().count_rows())
        if self._s3 is not None:
            files = self._s3.files()
            return int(ds.dataset(f"{BUCKET}/changes", filesystem=files).count_rows())
        return int(ds.dataset(path, format="parquet").count_rows())


def _has_failed(pod: RunningPod) -> bool:
    return bool(pod.oom_kills or pod.restarts)


def main() -> None:
    """Run the proof."""
    options = parsed_options(
        __doc__,
        shape=("one-pod", "executors"),
        format=("parquet", "delta"),
        store=("volume", "s3"),
        reading=("bounded", "continuous"),
        runs=2,
        partitions=10_000,
        records=5_000_000,
    )
    # So that no pod is left when this process is ended.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    kind = Kind(options.shape, options.format, options.store == "s3", options.reading)
    for number in range(options.runs):
        print(f"run {number + 1}: {kind}", flush=True)
        start_us = time.time_ns() // 1_000 - BEGAN_US
        load = Load(options.partitions, options.records, start_us)
        with ExitStack() as stack:
            folder = Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="slackwater-pods-"))
            )
            folder.chmod(0o755)
            Run(kind, load, folder, stack).prove()
    print("no process was killed for its memory, and all records are there")


if __name__ == "__main__":
    main()
