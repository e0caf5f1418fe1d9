"""Seeded runs over streams with mutable key ranges, through the fault proxy, against the truth.

`python -m tests.faults.mutable_seeded --seeds 200` runs many; the tests run the first of them. The
server is synthetic: the emulator does not know this kind of change stream yet. Two of three streams
have a read function for each of three placements.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from tenacity import wait_random_exponential

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import ReaderError
from slackwater.reader.records import ColumnType, DataChangeRecord, Mod
from slackwater.reader.schema import DATA_SCHEMA
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.errors import AuditError
from slackwater.state.errors import StateError
from slackwater.timestamp import datetime_to_ns, format_rfc3339
from tests.faults.proxy import Breaks, Delays, FaultProxy, Rule
from tests.support.epochs import AbandonedError, EpochLoop
from tests.support.programs import parsed_options
from tests.synthetic.mutable import mutable_stream
from tests.synthetic.server import CHANGE_STREAM, SyntheticSpanner

START_US = 1_769_850_000_000_000
STEP_US = 300_000
# A partition's token, and a record in it.
Row = tuple[str, DataChangeRecord]
_TRIES_MAX = 200


def rows_of(table: pa.Table) -> list[Row]:
    """Return the rows of an epoch's output."""
    return [(row["partition_token"], _record(row)) for row in table.to_pylist()]


def _record(row: Mapping[str, Any]) -> DataChangeRecord:
    time, *others = (row[name] for name in DATA_SCHEMA.names)
    return DataChangeRecord(datetime_to_ns(time), *others)._replace(
        column_types=tuple(ColumnType(**column) for column in row["column_types"]),
        mods=tuple(Mod(**mod) for mod in row["mods"]),
    )


def require_equal(rows: Iterable[Row], expected: Iterable[Row]) -> None:
    """Check that each record is there once.

    Raises:
        AssertionError: one is lost, or there twice.
    """
    read, truth = Counter(rows), Counter(expected)
    lost, doubled = truth - read, read - truth
    assert not lost, f"{lost.total()} lost, such as {min(lost)}"
    assert not doubled, f"{doubled.total()} doubled, such as {min(doubled)}"


def run(seed: int, folder: Path, *, is_calm: bool = False) -> Counter[str]:
    """Make one run, and return what was injected and what happened.

    Args:
        seed: chooses everything.
        folder: for the metadata store.
        is_calm: True if no query breaks; attempts are abandoned and processes replaced all the
            same.

    Raises:
        AssertionError: the output differs from the truth, an epoch is no consistent cut, or a
            failure is permanent.
    """
    choose = random.Random(seed)
    source = mutable_stream(seed, start_us=START_US, step_us=STEP_US)
    last_us = source.last_us()
    likely, refusals = choose.choice(((0.0, 0.0), (0.2, 0.3), (0.5, 0.05), (0.7, 0.0)))
    rules: list[Rule] = [
        Breaks(likely, choose.randint(0, 4), choose.choice((0.0, 0.3)), refusals),
        Delays(choose.choice((0.0, 0.1))),
    ]
    if is_calm:
        rules = []
    start_us = START_US + choose.randrange(1, 4) * STEP_US
    options = {
        "max_span": choose.choice(("1s", "2s")),
        "tasks": choose.choice(("1", "2", "5")),
        "concurrent_queries": choose.choice(("1", "4", "16")),
        "proof": choose.choice(("ok", "record")),
        "end": format_rfc3339((last_us + 2_000_000) * 1_000),
    }
    columns: dict[str, Any] = {"_UNDELIVERED_ROWS_MAX": 8}
    if seed % 4 < 2:
        columns = {"_BY_COLUMN_BYTES_MIN": 0}
    with (
        SyntheticSpanner(source.script) as server,
        FaultProxy(server.host, rules, seed=seed) as proxy,
        patch("slackwater.reader.query.reopened_query._WAIT", wait_random_exponential(0.01, 0.1)),
        patch.multiple("slackwater.reader.query.batch_decoder", **columns),
    ):
        stream = ChangeStream(
            "test-project", "test", "test-db", CHANGE_STREAM, endpoint=plaintext(proxy.host)
        )
        url = f"sqlite:///{folder / f'mutable-{seed}.db'}"
        loop = Loop(stream, url, start_us, options, choose)
        loop.run(watermark_for_end((last_us + 2_000_000) * 1_000))
        loop.seen.update(proxy.injected)
    require_equal(loop.rows, source.records(after_us=start_us - 1))
    return loop.seen


class Loop:
    """Epochs until all is read, with attempts that are abandoned and processes that are replaced.

    Attributes:
        rows: the output.
        seen: what happened.
    """

    def __init__(
        self,
        stream: ChangeStream,
        url: str,
        start_us: int,
        options: dict[str, str],
        choose: random.Random,
    ) -> None:
        self.rows: list[Row] = []
        self.seen: Counter[str] = Counter()
        self._choose = choose
        self._stream, self._url, self._options = stream, url, options
        self._start_ns = start_us * 1_000 - 500
        self._loop = self._new(None)

    def _new(self, former: EpochLoop | None) -> EpochLoop:
        return EpochLoop(
            self._stream,
            self._url,
            start_ns=self._start_ns,
            options=self._options,
            resume=former,
        )

    def run(self, through_ns: int) -> None:
        for _ in range(_TRIES_MAX):
            former_ns = self._loop.watermark_ns
            if former_ns is not None and former_ns >= through_ns:
                self._loop.close()
                return
            self._epoch(former_ns or self._start_ns)
            if self._choose.random() < 0.2:
                self._loop.close()
                self._loop = self._new(self._loop)
                self.seen["restarts"] += 1
        raise AssertionError(f"the low watermark stands at {self._loop.watermark_ns}: {self.seen}")

    def _epoch(self, former_ns: int) -> None:
        only_tasks = self._choose.randint(0, 2) if self._choose.random() < 0.2 else None
        try:
            rows = rows_of(self._loop.epoch(only_tasks=only_tasks))
        except AbandonedError:
            self.seen["abandoned"] += 1
        except (ReaderError, StateError, AuditError) as error:
            if error.user_error:
                raise AssertionError("the pipeline would have stopped for good") from error
            self.seen[f"failed: {type(error).__name__}"] += 1
        else:
            end_ns = self._loop.watermark_ns or 0
            assert all(former_ns < r.commit_timestamp_ns <= end_ns for _, r in rows), "no cut"
            self.rows += rows
            self.seen["epochs"] += 1


def main() -> int:
    """Run seeds and print a line for each; 1 if any differs from the truth."""
    options = parsed_options(__doc__, seeds=200, first=0, calm=False)
    total: Counter[str] = Counter()
    failed: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.first, options.first + options.seeds):
            began = time.monotonic()
            try:
                seen = run(seed, Path(folder), is_calm=options.calm)
            except AssertionError as error:
                failed.append(seed)
                print(f"seed {seed}: {str(error)[:2_000]}", flush=True)
                continue
            total += seen
            print(f"seed {seed}: {time.monotonic() - began:.1f} s {dict(seen)}", flush=True)
    print(f"{options.seeds} runs, {len(failed)} differ {failed}: {dict(total)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
