"""The demonstration: a busy change stream read into Parquet in spite of a kill, and compared."""

import os
import shutil
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from slackwater.demo.load import CHANGE_STREAM, Load, LoadResult, ddl
from slackwater.demo.service import Service
from slackwater.endpoint import plaintext
from slackwater.monitoring.lineage_graph import GRAPHVIZ_HINT, render_svg, to_dot
from slackwater.pipeline.spark.java import find_java
from slackwater.printing import in_one_line
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.epochs import last_epochs
from slackwater.state.store import Store
from slackwater.testing.compare import compare, cut_violations, freshness_seconds, read_changelog
from slackwater.testing.emulator import Emulator, running_emulator
from slackwater.testing.emulator_database import create_database
from slackwater.testing.plain_client import Truth, read_truth
from slackwater.timestamp import format_rfc3339, ns_to_seconds

_TRANSACTIONS_PER_SECOND: Final = 60
_CHURN_SECONDS: Final = 2
# As in shells: 128 and the signal's number.
_ENDED_BY_SIGTERM: Final = 143


def show(directory: Path, *, seconds: int) -> bool:
    """Run the demonstration, and return whether output and truth are equal.

    Args:
        directory: where the output, the logs and the drawing go; emptied first.
        seconds: how long to write changes.
    """
    find_java()
    console = Console(soft_wrap=True)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    console.print(
        "[bold]Starting the Cloud Spanner emulator[/]; each partition lives for about 2 s"
    )
    log = directory / "emulator.log"
    with (
        _ending_on_sigterm(),
        running_emulator(partition_alive_seconds=_CHURN_SECONDS, log=log) as emulator,
    ):
        # The plain client finds the emulator by this variable.
        os.environ.update(emulator.environment())
        return _show_on(emulator, console, directory, seconds)


@contextmanager
def _ending_on_sigterm() -> Iterator[None]:
    """Leave the context cleanly on SIGTERM, as after Ctrl-C."""

    def end(*_: object) -> None:
        raise SystemExit(_ENDED_BY_SIGTERM)

    previous = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _show_on(emulator: Emulator, console: Console, directory: Path, seconds: int) -> bool:
    stream = ChangeStream(
        project="demo-project",
        instance="demo-instance",
        database=f"demo-{int(time.time())}",
        change_stream=CHANGE_STREAM,
        endpoint=plaintext(emulator.host),
    )
    create_database(stream, Dialect.GOOGLE_STANDARD_SQL, ddl(Dialect.GOOGLE_STANDARD_SQL))
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    start = format_rfc3339(start_ns)
    service = Service(
        _settings(stream, directory.resolve(), start), directory, os.environ, dies_with_parent=True
    )
    console.print("[bold]Starting the pipeline[/]; Spark takes some seconds")
    service.start()
    try:
        service.follow_to_watermark(start_ns, console.print)
        written = _write_and_kill(console, service, stream, seconds)
        end_ns = connection.strong_read_timestamp_ns()
        service.follow_to_watermark(end_ns, console.print)
        console.print(f"caught up; drained with SIGTERM: exit code {service.drain()}")
    finally:
        service.kill()
    console.print("[bold]Reading the truth[/] with a plain client that follows the same stream")
    truth = read_truth(
        project=stream.project,
        instance=stream.instance,
        database=stream.database,
        change_stream=stream.change_stream,
        is_postgresql=False,
        start=start,
        end=format_rfc3339(end_ns),
    )
    connection.close()
    return _report(console, directory, truth, written)


def _settings(stream: ChangeStream, directory: Path, start: str) -> dict[str, object]:
    return {
        "pipeline": "demo",
        "source": {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
            "start": start,
        },
        "epoch": {"trigger": "0s"},
        "sink": {
            "kind": "changelog",
            "format": "parquet",
            "path": str(directory / "changes"),
            "checkpoint": str(directory / "checkpoint"),
        },
        "state": {"url": f"sqlite:///{directory / 'state.db'}"},
        "spark": {"master": "local[2,4]"},
    }


def _write_and_kill(
    console: Console, service: Service, stream: ChangeStream, seconds: int
) -> LoadResult:
    results: list[LoadResult] = []

    def write() -> None:
        load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
        results.append(load.run(transactions_per_second=_TRANSACTIONS_PER_SECOND, seconds=seconds))

    writer = threading.Thread(target=write, daemon=True)
    console.print(
        f"[bold]Writing[/] {_TRANSACTIONS_PER_SECOND} transactions per second for {seconds} s"
    )
    writer.start()
    time.sleep(seconds * 0.5)
    console.print("[bold red]kill -9[/] of the pipeline and all its processes; starting it again")
    service.kill()
    service.start()
    writer.join()
    return results[0]


def _report(console: Console, directory: Path, truth: Truth, written: LoadResult) -> bool:
    output = read_changelog(directory / "changes")
    _show_rows(console, output.slice(0, 4).to_pylist())
    tables = Counter(output.column("table_name").to_pylist())
    console.print(
        f"records: {output.num_rows}  ("
        + ", ".join(f"{name} {count}" for name, count in sorted(tables.items()))
        + f") in {written.transactions} transactions, from"
        f" {len(set(output.column('partition_token').to_pylist()))} of {len(truth.partitions)}"
        " partitions"
    )
    store = Store.open(f"sqlite:///{directory / 'state.db'}", migrate=False)
    _show_epochs(console, store)
    _draw(console, directory, store)
    fresh = freshness_seconds(directory / "changes")
    console.print(
        f"freshness, from commit to readable: median {statistics.median(fresh):.2f} s,"
        f" worst {fresh[-1]:.2f} s (with a kill and a restart in between)"
    )
    comparison = compare(output, truth.records)
    violations = cut_violations(output)
    console.print(
        f"[bold]output and truth:[/] {comparison.equal} of {len(truth.records)} records equal,"
        f" {len(comparison.missing)} missing, {len(comparison.unexpected)} unexpected,"
        f" {len(comparison.doubled)} doubled; {len(violations)} broken cuts"
    )
    is_equal = comparison.is_equal and not violations and written.transactions > 0
    console.print("[bold green]equal[/]" if is_equal else "[bold red]NOT equal[/]")
    return is_equal


def _show_rows(console: Console, rows: list[dict[str, object]]) -> None:
    names = ("commit_timestamp", "server_transaction_id", "table_name", "mod_type", "mods")
    table = Table(*names, title="first rows of the Parquet output")
    for row in rows:
        table.add_row(*(Text(in_one_line(str(row[name])[:60])) for name in names))
    console.print(table)


def _show_epochs(console: Console, store: Store) -> None:
    epochs = last_epochs(store, "demo", limit=10_000)
    table = Table(
        "low watermark", "records", "transactions", "partitions", "seconds", title="last epochs"
    )
    for epoch in epochs[-6:]:
        table.add_row(
            format_rfc3339(epoch.end_ns),
            *(str(n) for n in (epoch.records, epoch.transactions, epoch.partitions)),
            f"{epoch.seconds:.2f}",
        )
    console.print(table)
    spans = [ns_to_seconds(e.end_ns - e.start_ns) for e in epochs]
    console.print(f"{len(epochs)} epochs, median span {statistics.median(spans):.2f} s")


def _draw(console: Console, directory: Path, store: Store) -> None:
    dot = to_dot(store.partitions("demo"), low_watermark_ns=None)
    (directory / "lineage.dot").write_text(dot)
    svg = render_svg(dot)
    if svg is None:
        console.print(f"lineage: {directory / 'lineage.dot'}. {GRAPHVIZ_HINT}", markup=False)
        return
    (directory / "lineage.svg").write_bytes(svg)
    console.print(f"lineage: {directory / 'lineage.svg'}", markup=False)
