"""What Google's client for Java reads of a table of Bigtable's, and what ours reads, are the same.

Both read one synthetic history in real time, with its splits, merges and large values, over calls
that break, and are held against it. So the server speaks the protocol as Google's client does.
`python -m tests.proofs.bigtable_java_reader --seeds 3` needs Maven's repository.
"""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final

from slackwater.endpoint import plaintext
from slackwater.pipeline.spark.java import find_java
from slackwater.reader.bigtable.change_rows import rows_of
from slackwater.reader.bigtable.changes import Changes
from slackwater.reader.bigtable.partition_read import PartitionRead
from slackwater.reader.bigtable.positions import Position, Read, reads_of, starting_at
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import BigtableTable
from tests.support import ivy
from tests.support.bigtable_rows import Row, as_row, require_once
from tests.support.programs import parsed_options
from tests.synthetic.bigtable.faults import Fault, Faults
from tests.synthetic.bigtable.history import Shape, generate
from tests.synthetic.bigtable.server import bigtable_process, now_us

VERSION: Final = "2.58.2"
_SOURCE: Final = Path(__file__).parents[1] / "support" / "BigtableReader.java"
_SECOND_US: Final = 1_000_000
# Tablets may still change for a second after the last change.
_SETTLED_US: Final = 3 * _SECOND_US
_SILENCE_US: Final = 20 * _SECOND_US
_PARTITIONS_MAX: Final = 64


def by_java(host: str, start_us: int, end_us: int) -> tuple[list[Row], int]:
    """Return what Google's client reads, in order, and how many partitions were closed."""
    jars = ivy.artifact("com.google.cloud", "google-cloud-bigtable", VERSION)
    done = subprocess.run(
        [
            *(str(find_java()), "-cp", f"{jars}/*", str(_SOURCE)),
            *(*host.split(":"), str(start_us), str(end_us)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-5_000:]
    *lines, closed = done.stdout.splitlines()
    return [_row(json.loads(line)) for line in lines], int(closed)


def _row(printed: list[Any]) -> Row:
    row_key, commit_us, kind, cluster, tiebreaker, entries = printed
    changed = tuple(map(_entry, entries))
    return Row(bytes.fromhex(row_key), commit_us, kind, cluster, tiebreaker, changed)


def _entry(entry: list[Any]) -> tuple[Any, ...]:
    kind, family, qualifier, at, end, value = entry
    return kind, family, _bytes(qualifier), at, end, _bytes(value)


def _bytes(hexadecimal: str | None) -> bytes | None:
    return None if hexadecimal is None else bytes.fromhex(hexadecimal)


def by_ours(host: str, start_us: int, end_us: int) -> list[Row]:
    """Return what our reader reads, in order: epochs of a second, without Spark and a store."""
    endpoint = plaintext(host)
    service = BigtableService(BigtableTable("project", "instance", "table", endpoint=endpoint))
    positions: list[Position] = starting_at(service.partitions(), start_us)
    rows: list[Mapping[str, Any]] = []

    def deliver(changes: Changes) -> None:
        rows.extend(rows_of([changes], end_us).to_pylist())

    def after(until_us: int, read: Read) -> tuple[Position, ...]:
        return PartitionRead(service, read, until_us, 1_000, deliver).run().positions

    with ThreadPoolExecutor(_PARTITIONS_MAX) as pool:
        for until_us in _epochs(start_us, end_us):
            positions = list(
                itertools.chain(*pool.map(partial(after, until_us), reads_of(positions)))
            )
    service.close()
    return list(map(as_row, rows))


def _epochs(start_us: int, end_us: int) -> Iterator[int]:
    """The ends of epochs, each when it has passed."""
    for until_us in range(start_us + _SECOND_US, end_us + 1, _SECOND_US):
        time.sleep(max(0, (until_us + 1 - now_us()) / 1e6))
        yield until_us


def prove(seed: int, seconds: float) -> str:
    """Read the history of a seed by both, compare, and return what was read.

    Raises:
        AssertionError: one has not read what is in the history.
    """
    shape = Shape(
        start_us=now_us(),
        seconds=seconds,
        changes_per_s=100,
        churn_per_s=1,
        clusters=2,
        large=0.05,
    )
    end_us = shape.end_us + _SETTLED_US
    faults = Faults(seed, 0.2, kinds=tuple(Fault), silence_us=_SILENCE_US)
    with (
        bigtable_process(partial(generate, seed, shape), faults) as host,
        ThreadPoolExecutor() as pool,
    ):
        javas = pool.submit(by_java, host, shape.start_us, end_us)
        ours = pool.submit(by_ours, host, shape.start_us, end_us).result()
        of_java, closed = javas.result()
    changes = generate(seed, shape).changes
    require_once(ours, changes)
    require_once(of_java, changes)
    return f"{len(changes)} changes, {closed} closed partitions, equal in both"


def main() -> int:
    """Compare as often as asked, and print a line for each history."""
    options = parsed_options(__doc__, seeds=3, first=1, seconds=30.0)
    for seed in range(options.first, options.first + options.seeds):
        print(f"seed {seed}: {prove(seed, options.seconds)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
