"""Many kill -9 of the whole process tree at chosen moments of an epoch; nothing is lost or doubled.

The moments are recognized from outside, by the files that Spark and the pipeline write.
`python -m tests.proofs.kills --kills 30 --format delta` kills as often as asked.
"""

import os
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import own_database
from tests.support.programs import parsed_options
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

TRANSACTIONS_PER_SECOND = 20
_LOOK_S = 0.0005
_MOMENT_S_MAX = 240
# To read its history costs the emulator more the longer it has run.
_KILLS_OF_AN_EMULATOR = 10


class Moment(StrEnum):
    """The moments in an epoch at which the process is killed."""

    PLANNING = "planning"
    READING = "reading"
    SINK_COMMIT = "sink commit"
    CHECKPOINT_WRITE = "checkpoint write"
    STORE_TRANSACTION = "store transaction"


@dataclass
class Watched:
    """The files of a pipeline under a folder."""

    folder: Path

    def sign(self, moment: Moment) -> Callable[[], object]:
        """Return a function whose value changes at the moment."""
        changes, checkpoint = self.folder / "changes", self.folder / "checkpoint"
        match moment:
            case Moment.PLANNING:
                return lambda: _names(checkpoint / "offsets")
            case Moment.READING:
                return lambda: [_names(owner) for owner in _below(changes / "_staging")]
            case Moment.SINK_COMMIT:
                logs = [changes, changes / "_delta_log", changes / "metadata"]
                return lambda: list(map(_names, logs))
            case Moment.CHECKPOINT_WRITE:
                return lambda: _names(checkpoint / "commits")
            case Moment.STORE_TRANSACTION:
                wal = self.folder / "state.db-wal"
                return lambda: wal.stat().st_mtime_ns if wal.exists() else None

    def wait(self, moment: Moment, epochs_max: int | None = None) -> Moment:
        """Wait until the moment is visible, and return it.

        An epoch without records stages nothing and commits nothing.

        Args:
            moment: the moment.
            epochs_max: after so many epochs without the moment, planning is the moment; None waits
                for the moment alone.

        Raises:
            TimeoutError: it did not come.
        """
        sign, planning = self.sign(moment), self.sign(Moment.PLANNING)
        before, planned, until = sign(), planning(), time.monotonic() + _MOMENT_S_MAX
        epochs = 0
        while sign() == before:
            if planned != (planned := planning()):
                epochs += 1
                if epochs == epochs_max:
                    return Moment.PLANNING
            if time.monotonic() > until:
                raise TimeoutError(f"{moment} was not seen")
            time.sleep(_LOOK_S)
        return moment


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except FileNotFoundError:
        return frozenset()


def _below(folder: Path) -> list[Path]:
    return [folder / name for name in sorted(_names(folder))]


@dataclass
class Killing:
    """One pipeline under load that is killed again and again.

    Args:
        stream: the change stream of a database with the demo's schema.
        folder: for everything that the pipeline writes.
        file_format: the changelog's format.
        seed: for the load and for the pauses after the moments.
        moments: the moments, taken in turn.
        dialect: the database's dialect.
    """

    stream: ChangeStream
    folder: Path
    file_format: str
    seed: int
    moments: Sequence[Moment] = tuple(Moment)
    dialect: Dialect = Dialect.GOOGLE_STANDARD_SQL
    killed: Counter[str] = field(default_factory=Counter)

    def run(self, kills: int) -> pa.Table:
        """Kill the pipeline, let it catch up, compare its output with the truth, and return it.

        Raises:
            AssertionError: the output differs from the truth.
        """
        connection = Connection(self.stream)
        start_ns = connection.strong_read_timestamp_ns()
        pipeline_settings: dict[str, Any] = settings(
            self.stream, self.folder, format_rfc3339(start_ns)
        )
        pipeline_settings["sink"]["format"] = self.file_format
        service = Service(pipeline_settings, self.folder, os.environ)
        stop = threading.Event()
        writer = threading.Thread(target=self._write, args=(stop,))
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=240)
        writer.start()
        try:
            self._kill(service, kills)
        finally:
            stop.set()
            writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=240)
        assert service.drain() == 0
        connection.close()
        assert "customer 1" not in service.log.read_text(), "a record's value is in the log"
        return self._compare(start_ns, end_ns)

    def _kill(self, service: Service, kills: int) -> None:
        choose = random.Random(self.seed)
        watched = Watched(self.folder)
        for number in range(kills):
            # Small epochs are not staged where the driver writes them: planning is the moment then.
            moment = watched.wait(self.moments[number % len(self.moments)], epochs_max=10)
            # At once, or somewhat later: what comes next in the epoch is hit as well.
            time.sleep(choose.choice((0.0, choose.uniform(0, 0.05), choose.uniform(0, 0.3))))
            service.kill()
            self.killed[moment.value] += 1
            reached_ns = service.low_watermark_ns() or 0
            service.start()
            service.wait_for_watermark(reached_ns + 1, seconds_max=240)
            print(f"{number + 1} kills, the last one at {moment}", file=sys.stderr, flush=True)

    def _write(self, stop: threading.Event) -> None:
        load = Load(self.stream, self.dialect, seed=self.seed)
        load.run(transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=3_600, stop=stop)

    def _compare(self, start_ns: int, end_ns: int) -> pa.Table:
        truth = truth_of(self.stream, start_ns, end_ns, self.dialect)
        path = self.folder / "changes"
        output = read_delta(path) if self.file_format == "delta" else read_changelog(path)
        require_equal(output, truth)
        return output


def read_delta(path: Path) -> pa.Table:
    """Read the rows of a Delta table with a library that did not write it."""
    return ds.dataset(DeltaTable(str(path)).file_uris(), format="parquet").to_table()


def _run(file_format: str, seed: int, kills: int, dialect: Dialect) -> tuple[Killing, pa.Table]:
    with own_database(dialect) as stream, tempfile.TemporaryDirectory() as folder:
        killing = Killing(stream, Path(folder), file_format, seed, dialect=dialect)
        output = killing.run(kills)
    return killing, output


def main() -> int:
    """Kill as often as asked, and print the result."""
    options = parsed_options(
        __doc__, kills=30, format="parquet", dialect=Dialect.GOOGLE_STANDARD_SQL, seed=1
    )
    began = time.monotonic()
    killed: Counter[str] = Counter()
    records = 0
    for first in range(0, options.kills, _KILLS_OF_AN_EMULATOR):
        kills = min(_KILLS_OF_AN_EMULATOR, options.kills - first)
        killing, output = _run(options.format, options.seed + first, kills, options.dialect)
        killed += killing.killed
        records += output.num_rows
    print(
        f"{options.format}, {options.dialect}: {options.kills} kills {dict(killed)},"
        f" {records} records equal, {time.monotonic() - began:.0f} s"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
