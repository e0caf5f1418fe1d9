"""Rescans, new tables and repairs under random changes and kills: mirrors equal their tables.

A pipeline of mirrors begins without the rows that its tables have. They are read again while it
runs, the change stream begins to watch one more table, and rows of a mirror are damaged, which
`verify --repair` finds. The pipeline is killed in the middle of each.

python -m tests.proofs.rescans --rows 6000 --kills 3
"""

import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import deltalake

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.epochs import last_epochs
from slackwater.state.errors import StateError
from slackwater.state.models import Epoch
from slackwater.state.rescan_models import NEW_TABLE, REPAIR, REQUESTED, Rescan, RescanState
from slackwater.state.rescans import rescans
from slackwater.state.store import Store
from slackwater.testing.emulator_database import database_of, update_ddl
from tests.proofs.mirrors import KINDS, MORE_KINDS, mirror_settings
from tests.support import mixed_load
from tests.support.emulators import CHURN_SECONDS, own_database
from tests.support.mirror_looks import Looker
from tests.support.mixed_load import MixedLoad
from tests.support.programs import parsed_options

SECONDS_MAX: Final = 1_500
WATCHED: Final = (mixed_load.SINGERS, mixed_load.ALBUMS, mixed_load.FLAGS)
NEW: Final = mixed_load.NOTES
# No epoch is to be longer by more than this than the median of its neighbours.
LONGER_S_MAX: Final = 2.0
NEIGHBOURS: Final = 10
# Of the first epochs after a start, Spark is warming up.
FIRST_EPOCHS: Final = 3


def ddl(dialect: Dialect, capture: str) -> list[str]:
    """Return a schema whose stream does not watch the last table yet."""
    *tables, stream = mixed_load.ddl(dialect, capture)
    quote = '"' if dialect is Dialect.POSTGRESQL else ""
    names = ", ".join(f"{quote}{name}{quote}" for name in WATCHED)
    return [*tables, stream.replace("FOR ALL", f"FOR {names}")]


def insert_many(stream: ChangeStream, count: int) -> None:
    """Insert rows into two tables, which no transaction of the load changes."""
    database = database_of(stream)
    for first in range(0, count, 500):
        numbers = range(first, min(count, first + 500))
        with database.batch() as batch:
            singers = [[-1 - number, f"many {number}"] for number in numbers]
            batch.insert(mixed_load.SINGERS, ("Id", "Name"), singers)
            notes = [[f"many {number}", "text", number] for number in numbers]
            batch.insert(NEW, ("Id", "Text", "Size"), notes)


@dataclass
class Pipeline:
    """A pipeline of mirrors, as its operator sees it.

    Attributes:
        service: its process.
        url: of its metadata store.
        starts_ns: when it was started.
        busy_ns: from when until when something was read again.
    """

    service: Service
    url: str
    starts_ns: list[int] = field(default_factory=list)
    busy_ns: list[tuple[int, int]] = field(default_factory=list)

    def start(self) -> None:
        self.starts_ns.append(time.time_ns())
        self.service.start()

    def command(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run a command, and return what it printed."""
        done = subprocess.run(
            [sys.executable, "-m", "slackwater.cli", *arguments, "-c", str(self.service.config)],
            capture_output=True, text=True, timeout=SECONDS_MAX, check=False,
        )  # fmt: skip
        assert done.returncode in codes, (arguments, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def read(self, ask: Callable[[Store], Any]) -> Any:
        """Ask the metadata store."""
        store = Store.open(self.url, migrate=False)
        try:
            return ask(store)
        finally:
            store.close()

    def wait(self, what: str, is_done: Callable[[list[Rescan]], object]) -> list[Rescan]:
        """Wait for what becomes of the rescans."""
        until = time.monotonic() + SECONDS_MAX
        while time.monotonic() < until:
            try:
                listed: list[Rescan] = self.read(lambda store: rescans(store, "orders"))
            except StateError:
                listed = []
            if is_done(listed):
                return listed
            time.sleep(0.05)
        tail = self.service.log.read_text()[-3_000:]
        raise AssertionError(f"{what}: not within {SECONDS_MAX} s. {listed}\n{tail}")

    def through_kills(self, reason: str, tables: Sequence[str], kills: int, seed: int) -> None:
        """Kill the pipeline again and again, until these tables have been read again."""
        begun_ns = time.time_ns()
        choice = random.Random(seed)

        def mine(listed: list[Rescan]) -> list[Rescan]:
            return [one for one in listed if one.reason == reason and one.table in tables]

        def has_more(listed: list[Rescan], chunks: int) -> bool:
            own = mine(listed)
            is_done = all(one.state is RescanState.DONE for one in own)
            return bool(own) and (is_done or sum(one.chunks for one in own) > chunks)

        for _ in range(kills):
            chunks = sum(one.chunks for one in mine(self.wait("requests", bool)))
            self.wait("a chunk", partial(has_more, chunks=chunks))
            time.sleep(choice.uniform(0, 1.5))
            self.service.kill()
            self.start()
        listed = self.wait(
            f"the end of {reason}",
            lambda listed: (
                len(mine(listed)) == len(tables)
                and all(one.state is RescanState.DONE for one in mine(listed))
            ),
        )
        self.busy_ns.append((begun_ns, time.time_ns()))
        for one in mine(listed):
            print(f"  {one.reason} {one.table}: {one.records} rows, {one.corrected} corrected,"
                  f" {one.chunks} chunks", flush=True)  # fmt: skip


@dataclass(frozen=True)
class Lengths:
    """By how many seconds warm epochs were longer than their neighbours' median, the most first.

    Attributes:
        beside: those during which something was read again.
        others: the other ones, which show what is usual.
    """

    beside: Sequence[float]
    others: Sequence[float]

    def text(self) -> str:
        return (
            f"{len(self.beside)} epochs beside rescans, longer than their neighbours by"
            f" {_listed(self.beside)} s; {len(self.others)} others, by {_listed(self.others)} s"
        )


def _listed(seconds: Sequence[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in seconds[:5]) or "0"


def beyond_neighbours(
    epochs: Sequence[Epoch], starts_ns: Sequence[int], busy_ns: Sequence[tuple[int, int]]
) -> Lengths:
    """Compare each epoch with its neighbours, but for the first ones after a start."""
    first = set()
    for start_ns in starts_ns:
        after = [epoch.end_ns for epoch in epochs if epoch.committed_at_ns > start_ns]
        first |= set(after[:FIRST_EPOCHS])
    warm = [epoch for epoch in epochs if epoch.end_ns not in first]
    beside, others = list[float](), list[float]()
    for n, epoch in enumerate(warm):
        near = warm[max(0, n - NEIGHBOURS) : n + NEIGHBOURS + 1]
        is_beside = any(begun <= epoch.committed_at_ns <= done for begun, done in busy_ns)
        beyond_s = epoch.seconds - statistics.median(other.seconds for other in near)
        (beside if is_beside else others).append(beyond_s)
    return Lengths(sorted(beside, reverse=True), sorted(others, reverse=True))


def damage(mirror: Path) -> None:
    """Delete rows of a mirror, change others, and add one that its table does not have."""
    table = deltalake.DeltaTable(mirror)
    marks = {"_is_deleted": "false"} if "_is_deleted" in table.schema().to_arrow().names else {}
    table.delete('"Id" < -10 AND "Id" > -20')
    table.update(updates={'"Name"': "'damaged'"}, predicate='"Id" < -100 AND "Id" > -120')
    rows = table.to_pyarrow_table().slice(0, 1).to_pylist()
    rows[0] |= {"Id": 10**12} | dict.fromkeys(marks, False)
    import pyarrow as pa

    added = pa.Table.from_pylist(rows, schema=pa.schema(table.schema().to_arrow()))
    deltalake.write_deltalake(mirror, added, mode="append")


def run(
    stream: ChangeStream,
    dialect: Dialect,
    folder: Path,
    *,
    deletes: str,
    table_format: str,
    rows: int,
    kills: int,
    damages: bool,
) -> float:
    """Change, kill, read again and compare; return by how much an epoch was longer than others."""
    load = MixedLoad(stream, dialect, seed=11)
    while load.changes < 300:
        load.transaction()
    insert_many(stream, rows)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    settings = mirror_settings(stream, folder, start_ns, deletes, table_format)
    settings["source"] |= {"initial_scan": "no", "new_tables": "scan"}
    settings["epoch"] = {"trigger": "500ms"}
    pipeline = Pipeline(Service(settings, folder, os.environ), settings["state"]["url"])
    is_over = threading.Event()

    def write() -> None:
        while not is_over.wait(0.1):
            load.transaction()

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    pipeline.start()
    looker = Looker(folder / "mirrors", stream, dialect)
    try:
        pipeline.service.wait_for_watermark(start_ns + 10**9, seconds_max=SECONDS_MAX)
        pipeline.command("rescan", *(part for name in WATCHED for part in ("--table", name)))
        pipeline.through_kills(REQUESTED, WATCHED, kills, seed=1)
        quote = '"' if dialect is Dialect.POSTGRESQL else ""
        name = f"{quote}{mixed_load.CHANGE_STREAM}{quote}"
        update_ddl(stream, [f"ALTER CHANGE STREAM {name} SET FOR ALL"])
        pipeline.through_kills(NEW_TABLE, [NEW], kills, seed=2)
        looker.look()
        if damages:
            pipeline.service.kill()
            damage(folder / "mirrors" / mixed_load.SINGERS)
            pipeline.start()
            pipeline.command("verify", "--repair", "--table", mixed_load.SINGERS, codes=(1,))
            pipeline.through_kills(REPAIR, [mixed_load.SINGERS], kills, seed=3)
        looker.look()
        assert "different" not in pipeline.command("verify")
        is_over.set()
        writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        pipeline.service.wait_for_watermark(end_ns, seconds_max=SECONDS_MAX)
        assert pipeline.service.drain() == 0, pipeline.service.log.read_text()[-2_000:]
    finally:
        is_over.set()
        pipeline.service.kill()
        connection.close()
    looker.look_at_the_end()
    epochs = pipeline.read(lambda store: last_epochs(store, "orders", limit=100_000))
    lengths = beyond_neighbours(epochs, pipeline.starts_ns, pipeline.busy_ns)
    print(f"  {lengths.text()}")
    return max(lengths.beside, default=0.0)


def main() -> None:
    options = parsed_options(
        __doc__, rows=6000, kills=3, alive=CHURN_SECONDS, kinds=len(KINDS + MORE_KINDS)
    )
    longest_s = 0.0
    for dialect, capture, deletes, table_format in (KINDS + MORE_KINDS)[: options.kinds]:
        with (
            own_database(
                dialect,
                ddl(dialect, capture),
                mixed_load.CHANGE_STREAM,
                partition_alive_seconds=options.alive,
            ) as stream,
            tempfile.TemporaryDirectory() as folder,
        ):
            print(f"{dialect}, {table_format}, deletes {deletes}", flush=True)
            longer_s = run(
                stream,
                dialect,
                Path(folder),
                deletes=deletes,
                table_format=table_format,
                rows=options.rows,
                kills=options.kills,
                damages=table_format == "delta",
            )
            longest_s = max(longest_s, longer_s)
            print("  equal", flush=True)
    if longest_s > LONGER_S_MAX:
        raise SystemExit(f"an epoch took {longest_s:.2f} s longer than its neighbours")


if __name__ == "__main__":
    main()
