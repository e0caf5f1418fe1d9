"""Kills, and owners that freeze, at chosen requests to an object store; the output is the truth.

A request is chosen by its kind: a commit, a file, a line of the watermark log.
It is lost, or answered to nobody, or arrives when a successor has committed more epochs. A reader
looks all the time.
`python -m tests.object_kills --kills 30 --freezes 10 --format json --store gs`
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.fs as pafs
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import datetime_to_rfc3339, format_rfc3339
from tests.emulators import own_database
from tests.freezing import Frozen
from tests.object_stores import BUCKET, STORES, ServedStore, nothing
from tests.services import settings
from tests.sinks import from_json
from tests.truths import require_equal, truth_of

TRANSACTIONS_PER_SECOND = 20
FOLDER: Final = "out"
# The kinds of requests while epochs are published: a method, and a part of a name.
_OF_FILES: Final = (
    ("PUT", "_commits/"),
    ("HEAD", "_commits/"),
    ("PUT", "epoch="),
    ("PUT", "_watermarks/"),
    ("DELETE", "_commits/"),
)
_OF_DELTA: Final = (
    ("PUT", "/part-"),
    ("PUT", "_delta_log/"),
    ("GET", "_delta_log/"),
    ("PUT", "_watermarks/"),
    ("PUT", ".checkpoint.parquet"),
)
_WAIT_S_MAX: Final = 180
# A kind of request that is rare may not come: nothing is merged or removed in a young output.
_MOMENT_S_MAX: Final = 60
_LEASE: Final = {"duration": "6s"}


class DroppedError(Exception):
    """A request that never arrives."""


@dataclass
class Trap:
    """Does something at the next request of a kind."""

    store: ServedStore
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spring(self, moment: tuple[str, str], action: Callable[[], None]) -> bool:
        """Call an action before the next such request is answered; return whether there was one."""
        sprung = threading.Event()

        def before(method: str, name: str) -> None:
            if method != moment[0] or moment[1] not in name:
                return
            with self._lock:
                if self.store.before is not before:
                    return
                self.store.before = nothing
                sprung.set()
            action()

        self.store.before = before
        if sprung.wait(_MOMENT_S_MAX):
            return True
        with self._lock:
            self.store.before = nothing
        return sprung.is_set()


@dataclass
class Reader:
    """Reads the output all the time and remembers what it saw: each epoch's rows, by its name."""

    store: ServedStore
    file_format: str
    stop: threading.Event = field(default_factory=threading.Event)
    looks: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read for the time of the context."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self.stop.set()
            thread.join()

    def _run(self) -> None:
        look = self._look_at_table if self.file_format == "delta" else self._look_at_files
        while not self.stop.wait(0.3):
            look()
            self.looks += 1

    def _look_at_table(self) -> None:
        """Read the table's latest version, of which each epoch is whole."""
        try:
            table = DeltaTable(self.store.path + f"/{FOLDER}", storage_options=self.store.options)
        except TableNotFoundError:
            return
        read = table.to_pyarrow_table(columns=["low_watermark"])
        logged = self._lines(self.store.files())
        epochs = Counter(_name(datetime_to_rfc3339(at)) for at in read["low_watermark"].to_pylist())
        for epoch, rows in epochs.items():
            self._note(epoch, rows, logged.get(epoch))

    def _look_at_files(self) -> None:
        """Read, by the documented recipe, the epochs that are complete."""
        files = self.store.files()
        lines = self._lines(files)
        last = max(lines, default="")
        for epoch in [name for name in self._epochs(files) if name <= last]:
            if epoch not in self.rows:
                self._look(files, epoch, lines.get(epoch))

    def _look(self, files: pafs.FileSystem, epoch: str, logged: int | None) -> None:
        if self.file_format == "json":
            paths = _names(files, f"epoch={epoch}")
            rows = sum(files.open_input_stream(path).read().count(b"\n") for path in paths)
        else:
            path = f"{BUCKET}/{FOLDER}/epoch={epoch}"
            rows = ds.dataset(path, filesystem=files, format=self.file_format).count_rows()
        self._note(epoch, rows, logged)

    def _note(self, epoch: str, rows: int, logged: int | None) -> None:
        before = self.rows.setdefault(epoch, rows)
        if before != rows:
            self.failures.append(f"epoch {epoch} had {before} rows, and then {rows}")
        if logged is not None and rows != logged:
            self.failures.append(f"epoch {epoch} had {rows} rows of {logged}")

    def _lines(self, files: pafs.FileSystem) -> dict[str, int]:
        """Return the number of records by the epoch's name."""
        by_name: dict[str, int] = {}
        for path in _names(files, "_watermarks"):
            try:
                with files.open_input_stream(path) as stream:
                    texts = stream.read().splitlines()
            except FileNotFoundError:
                # Merged into another file since.
                continue
            for line in map(json.loads, texts):
                by_name[_name(line["low_watermark"])] = line["records"]
        return by_name

    def _epochs(self, files: pafs.FileSystem) -> list[str]:
        names = (path.rpartition("epoch=") for path in _names(files, ""))
        return [name for _, separator, name in names if separator]


def _name(low_watermark: str) -> str:
    """Return the name of an epoch's folder without its beginning."""
    return low_watermark.replace("-", "").replace(":", "")


def _names(files: pafs.FileSystem, folder: str) -> list[str]:
    selector = pafs.FileSelector(f"{BUCKET}/{FOLDER}/{folder}".rstrip("/"), allow_not_found=True)
    return [info.path for info in files.get_file_info(selector)]


@dataclass
class Run:
    """One pipeline on an object store, under load."""

    stream: ChangeStream
    folder: Path
    store: ServedStore
    file_format: str
    dialect: Dialect
    choose: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._connection = Connection(self.stream)
        self.start_ns = self._connection.strong_read_timestamp_ns()
        values: dict[str, Any] = settings(self.stream, self.folder, format_rfc3339(self.start_ns))
        values["sink"] = {
            "path": f"{self.store.path}/{FOLDER}",
            "format": self.file_format,
            "storage_options": self.store.options,
        }
        values["lease"] = _LEASE
        self._values = values
        self._services = 0
        self._trap = Trap(self.store)
        self.service = self._new_service()

    def _new_service(self) -> Service:
        """Return a service as on another machine: with a folder for temporary files of its own."""
        self._services += 1
        folder = self.folder / f"service-{self._services}"
        (folder / "tmp").mkdir(parents=True)
        return Service(self._values, folder, {**os.environ, "TMPDIR": str(folder / "tmp")})

    def kill(self, moment: tuple[str, str]) -> None:
        """Kill the service at a request, and start it again, or another one."""
        is_lost = self.choose.random() < 0.5

        def kill() -> None:
            self.service.kill()
            if is_lost:
                raise DroppedError

        if not self._spring(moment, kill):
            return
        # Its answer is on its way to nobody.
        while psutil.pid_exists(self.service.pid):
            time.sleep(0.05)
        reached_ns = self.service.low_watermark_ns() or 0
        if self.choose.random() < 0.5:
            self.service = self._new_service()
        self.service.start()
        self.service.wait_for_watermark(reached_ns + 1, seconds_max=_WAIT_S_MAX)
        self.done[f"killed at {' '.join(moment)}"] += 1

    def freeze(self, moment: tuple[str, str]) -> None:
        """Freeze the service at a request that arrives after its successor's next epochs."""
        released, made = threading.Event(), queue.SimpleQueue[Frozen]()
        former = self.service

        def freeze() -> None:
            made.put(Frozen(former, self._values["state"]["url"]))
            assert released.wait(2 * _WAIT_S_MAX)

        if not self._spring(moment, freeze):
            return
        frozen = made.get(timeout=_WAIT_S_MAX)
        reached_ns = former.low_watermark_ns() or 0
        self.service = self._new_service()
        self.service.start()
        for _ in range(3):
            self.service.wait_for_watermark(reached_ns + 1, seconds_max=_WAIT_S_MAX)
            reached_ns = self.service.low_watermark_ns() or 0
        released.set()
        frozen.thaw()
        for _ in range(3):
            self.service.wait_for_watermark(reached_ns + 1, seconds_max=_WAIT_S_MAX)
            reached_ns = self.service.low_watermark_ns() or 0
        former.kill()
        self.done[f"frozen at {' '.join(moment)}"] += 1

    def _spring(self, moment: tuple[str, str], action: Callable[[], None]) -> bool:
        if self._trap.spring(moment, action):
            return True
        self.done[f"not seen: {' '.join(moment)}"] += 1
        return False

    def run(self, kills: int, freezes: int) -> int:
        """Kill and freeze, let the service catch up, and return how many records equal the truth.

        Raises:
            AssertionError: the output differs from the truth, or a reader saw half an epoch.
        """
        stop = threading.Event()
        load = Load(self.stream, self.dialect, seed=self.choose.randrange(1_000))
        rate: dict[str, Any] = {"transactions_per_second": TRANSACTIONS_PER_SECOND}
        writer = threading.Thread(target=load.run, kwargs={**rate, "seconds": 3_600, "stop": stop})
        reader = Reader(self.store, self.file_format)
        moments = _OF_DELTA if self.file_format == "delta" else _OF_FILES
        self.service.start()
        self.service.wait_for_watermark(self.start_ns, seconds_max=_WAIT_S_MAX)
        writer.start()
        try:
            with reader.reading():
                steps = [self.kill] * kills + [self.freeze] * freezes
                self.choose.shuffle(steps)
                for number, step in enumerate(steps):
                    step(moments[number % len(moments)])
                    print(f"{number + 1}: {dict(self.done)}", file=sys.stderr, flush=True)
                stop.set()
                writer.join()
                end_ns = self._connection.strong_read_timestamp_ns()
                self.service.wait_for_watermark(end_ns, seconds_max=_WAIT_S_MAX)
                assert self.service.drain() == 0, self.service.log.read_text()[-3_000:]
        finally:
            stop.set()
            self.service.kill()
        self._connection.close()
        assert not reader.failures, reader.failures
        assert reader.looks > 0
        return self._require_equal(end_ns, reader)

    def _require_equal(self, end_ns: int, reader: Reader) -> int:
        output = self._output()
        truth = truth_of(self.stream, self.start_ns, end_ns, self.dialect)
        require_equal(output, truth)
        rows = Counter(output.column("epoch").to_pylist())
        changed = {
            name: (seen, rows[name]) for name, seen in reader.rows.items() if seen != rows[name]
        }
        assert changed == {}, f"epochs that changed after a reader saw them: {changed}"
        return int(output.num_rows)

    def _output(self) -> pa.Table:
        """Return the whole output, with each row's epoch."""
        copy = self.folder / "copy"
        self.store.download(FOLDER, copy)
        if self.file_format == "delta":
            output = DeltaTable(copy).to_pyarrow_table()
            times = map(datetime_to_rfc3339, output["low_watermark"].to_pylist())
            return output.append_column("epoch", [list(map(_name, times))])
        return from_json(copy) if self.file_format == "json" else read_changelog(copy)


def main() -> None:
    """Kill and freeze as often as asked, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--freezes", type=int, default=10)
    parser.add_argument("--format", choices=["parquet", "json", "delta"], default="parquet")
    parser.add_argument("--store", choices=sorted(STORES), default="s3")
    parser.add_argument("--dialect", type=Dialect, default=Dialect.GOOGLE_STANDARD_SQL)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()
    with (
        own_database(options.dialect) as stream,
        STORES[options.store]() as store,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
    ):
        choose = random.Random(options.seed)
        run = Run(stream, Path(folder), store, options.format, options.dialect, choose)
        records = run.run(options.kills, options.freezes)
    print(
        f"{options.store}, {options.format}, {options.dialect}: {dict(run.done)},"
        f" {records} records equal, {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
