"""Parts of a pipeline are set back to earlier moments, under load and churn, alone and together.

The metadata store, the checkpoint and the output are copied while every process of the pipeline is
stopped by a signal, so that a copy is what a snapshot of the disks would be: from the middle of an
epoch. Then some of them are restored, and the pipeline goes on, or refuses and is given the remedy
that it prints. `python -m tests.proofs.restores --moments 10` does it at as many moments as asked.
"""

import argparse
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import psutil
import sqlalchemy as sa
from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.demo.load import Load
from slackwater.errors import PartsDisagreeError
from slackwater.pipeline.observer import Observers
from slackwater.pipeline.recovery import Recovery
from slackwater.pipeline.run_options import RunOptions
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.jvm import jvm_process
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.pipeline.spark.shared import SharedSpark
from slackwater.pipeline.supervisor import PipelineSupervisor
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state import tables
from slackwater.state.store import Store
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.proofs.kills import read_delta
from tests.support import services
from tests.support.emulators import own_database
from tests.support.postgres import running_server
from tests.support.repository import ROOT
from tests.support.truths import require_equal, truth_of

TRANSACTIONS_PER_SECOND = 10
REMEDY = "--from-watermark last"
# The emulator and the truth take longer with each record, so that a database serves few of them.
MOMENTS_OF_A_DATABASE = 1


class Part(StrEnum):
    """What can be restored, and the name of its folder or file."""

    STORE = "store"
    CHECKPOINT = "checkpoint"
    OUTPUT = "changes"


COMBINATIONS = tuple(parts for count in (1, 2, 3) for parts in itertools.combinations(Part, count))


@dataclass
class Restorable:
    """One pipeline whose parts can be copied and set back.

    Args:
        spark: a session with the source registered.
        stream: the change stream of a database with the demo's schema.
        folder: for the checkpoint and the output.
        store_url: of the metadata store; a file of SQLite's, or a PostgreSQL database of its own.
        dialect: the database's dialect.
        sink: further settings of the sink.
    """

    spark: SparkSession
    stream: ChangeStream
    folder: Path
    store_url: str
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL
    sink: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.connection = Connection(self.stream)
        self.start_ns = self.connection.strong_read_timestamp_ns()
        values: dict[str, Any] = services.settings(
            self.stream, self.folder, format_rfc3339(self.start_ns)
        )
        values["sink"] |= self.sink
        values["state"]["url"] = self.store_url
        self.settings = Settings(**values)

    def close(self) -> None:
        self.connection.close()

    def run(self, recovery: Recovery | None = None) -> None:
        """Run the pipeline until it has caught up, as the command does."""
        self._supervise(RunOptions(True, recovery or Recovery()), threading.Event())

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the pipeline for the time of the context."""
        signalled, errors = threading.Event(), []

        def run() -> None:
            try:
                self._supervise(RunOptions(False, Recovery()), signalled)
            except Exception as error:  # noqa: BLE001 - raised by the caller's thread
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            signalled.set()
            thread.join()
        if errors:
            raise errors[0]

    def _supervise(self, options: RunOptions, signalled: threading.Event) -> None:
        supervisor = PipelineSupervisor(self.settings, options, signalled, Observers([]))
        try:
            supervisor.run(SharedSpark(lambda: self.spark, lambda spark: None))
        finally:
            supervisor.close()

    def low_watermark_ns(self) -> int | None:
        store = Store.open(self.store_url, migrate=False)
        pipeline = store.pipeline(self.settings.pipeline)
        store.close()
        return pipeline.low_watermark_ns if pipeline else None

    def wait_for_epochs(self, count: int) -> None:
        """Wait until a running pipeline has committed so many more epochs."""
        until = time.monotonic() + 180
        for _ in range(count):
            before_ns = self.low_watermark_ns()
            while self.low_watermark_ns() == before_ns:
                assert time.monotonic() < until, "no epoch was committed"
                time.sleep(0.02)

    def copy(self, to: Path) -> None:
        """Copy all parts; nothing of the pipeline may run, or be stopped by a signal."""
        for part in (Part.CHECKPOINT, Part.OUTPUT):
            if (self.folder / part).exists():
                shutil.copytree(self.folder / part, to / part)
        (to / Part.STORE).mkdir(parents=True)
        copy_store(self.store_url, to / Part.STORE)

    def restore(self, parts: Collection[Part], copied: Path) -> None:
        """Set parts back to what was copied; a part that did not exist then is removed."""
        for part in parts:
            if part is Part.STORE:
                restore_store(self.store_url, copied / part)
                continue
            shutil.rmtree(self.folder / part, ignore_errors=True)
            if (copied / part).exists():
                shutil.copytree(copied / part, self.folder / part)

    def require_equal(self) -> int:
        """Compare the output with the truth up to the low watermark; return the record count."""
        end_ns = self.low_watermark_ns()
        assert end_ns is not None
        truth = truth_of(self.stream, self.start_ns, end_ns, self.dialect)
        path = self.folder / Part.OUTPUT
        is_delta = self.settings.sink.format == "delta"
        output = read_delta(path) if is_delta else read_changelog(path)
        require_equal(output, truth)
        return int(output.num_rows)

    def freeze_and_copy(self, to: Path) -> None:
        """Stop this process and Spark's by a signal, copy all parts, and let them go on."""
        jvm = jvm_process()
        assert jvm is not None
        frozen = [os.getpid(), jvm.pid]
        frozen += [child.pid for child in psutil.Process(jvm.pid).children(recursive=True)]
        subprocess.run(
            [
                *(sys.executable, "-m", "tests.proofs.restores", "--copy", self.store_url),
                *(str(self.folder), str(to), *map(str, frozen)),
            ],
            check=True,
            cwd=ROOT,
        )


def copy_store(url: str, to: Path) -> None:
    """Copy the rows of a store's tables, as a replica that was cut off has them."""
    with _engines(url, to) as (store, copied):
        tables.metadata.create_all(copied)
        with store.connect() as source, copied.begin() as target:
            _copy_rows(source, target)


def restore_store(url: str, copied_to: Path) -> None:
    """Set the rows of a store's tables back to their copy."""
    with (
        _engines(url, copied_to) as (store, copied),
        copied.connect() as source,
        store.begin() as target,
    ):
        for table in tables.metadata.sorted_tables:
            target.execute(sa.delete(table))
        _copy_rows(source, target)


@contextmanager
def _engines(url: str, folder: Path) -> Iterator[tuple[sa.Engine, sa.Engine]]:
    store = sa.create_engine(url, isolation_level="SERIALIZABLE")
    copied = sa.create_engine(f"sqlite:///{folder / 'rows.db'}")
    yield store, copied
    store.dispose()
    copied.dispose()


def _copy_rows(source: sa.Connection, target: sa.Connection) -> None:
    for table in tables.metadata.sorted_tables:
        rows = [row._asdict() for row in source.execute(sa.select(table))]
        if rows:
            target.execute(sa.insert(table), rows)


@contextmanager
def session(formats: Collection[str] = ("parquet",)) -> Iterator[SparkSession]:
    """Start Spark as the program does."""
    find_java()
    spark = start_spark(["orders"], "local[2,4]", {}, formats)
    try:
        yield spark
    finally:
        stop_spark(spark)


def go_on(pipeline: Restorable) -> str:
    """Run a pipeline, with the remedy that it prints if it refuses; return which it was."""
    try:
        pipeline.run()
    except PartsDisagreeError as error:
        if f"`slackwater run {REMEDY}`" not in error.hint:
            raise
        pipeline.run(Recovery(from_watermark="last"))
        return "refused, remedy carried out"
    return "went on"


def _all_moments(pipeline: Restorable, copies: Path, moments: range, seed: int) -> Counter[str]:
    """Restore every combination of parts at each moment, and compare each time."""
    choose, done = random.Random(seed + moments.start), Counter[str]()
    pipeline.run()
    for moment in moments:
        with pipeline.running():
            for copy in range(2):
                pipeline.wait_for_epochs(choose.randint(1, 3))
                time.sleep(choose.uniform(0, 0.5))
                pipeline.freeze_and_copy(copies / f"{moment}-{copy}")
        for parts in COMBINATIONS:
            for part in parts:
                pipeline.restore([part], copies / f"{moment}-{choose.randint(0, 1)}")
            outcome = go_on(pipeline)
            records = pipeline.require_equal()
            done[f"{' and '.join(parts)} restored: {outcome}"] += 1
            print(f"moment {moment}: {parts} {outcome}, {records} equal", file=sys.stderr)
    return done


def _run(dialect: Dialect, store: str, file_format: str, moments: range, seed: int) -> Counter[str]:
    with (
        own_database(dialect) as stream,
        tempfile.TemporaryDirectory() as name,
        _store_url(store, Path(name)) as url,
        session([file_format]) as spark,
    ):
        folder, stop = Path(name), threading.Event()
        pipeline = Restorable(
            spark, stream, folder, url, dialect, {"format": file_format, "kind": "changelog"}
        )
        load = Load(stream, dialect, seed=seed + moments.start)
        writer = threading.Thread(
            target=load.run,
            kwargs={
                "transactions_per_second": TRANSACTIONS_PER_SECOND,
                "seconds": 10**6,
                "stop": stop,
            },
        )
        writer.start()
        try:
            return _all_moments(pipeline, folder / "copies", moments, seed)
        finally:
            stop.set()
            writer.join()
            pipeline.close()


@contextmanager
def _store_url(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'state.db'}"
        return
    with running_server() as url:
        yield url


def _copy_frozen(store_url: str, folder: str, to: str, *pids: str) -> None:
    """Copy a pipeline's parts while its processes stand still."""
    pipeline = Restorable.__new__(Restorable)
    pipeline.store_url, pipeline.folder = store_url, Path(folder)
    _send(pids, signal.SIGSTOP)
    try:
        pipeline.copy(Path(to))
    finally:
        _send(pids, signal.SIGCONT)


def _send(pids: Collection[str], number: signal.Signals) -> None:
    """Send a signal to processes; one of Spark's workers may have ended."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(int(pid), number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Restore as often as asked, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--moments", type=int, default=10)
    parser.add_argument("--format", default="parquet")
    parser.add_argument("--dialect", type=Dialect, nargs="*", default=list(Dialect))
    parser.add_argument("--store", nargs="*", default=["sqlite", "postgresql"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--copy", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.copy:
        _copy_frozen(*options.copy)
        return 0
    for dialect, store in itertools.product(options.dialect, options.store):
        began = time.monotonic()
        done = Counter[str]()
        for first in range(0, options.moments, MOMENTS_OF_A_DATABASE):
            moments = range(first, min(first + MOMENTS_OF_A_DATABASE, options.moments))
            done += _run(dialect, store, options.format, moments, options.seed)
        print(f"{options.format}, {dialect}, {store}: {time.monotonic() - began:.0f} s")
        for outcome, times in sorted(done.items()):
            print(f"  {times:3} x {outcome}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
