"""Planning, claims and the metadata store with a hundred executors and a million partitions a day.

Each executor is a process with the real task and a connection of its own. What they read has no
records: partitions of a script live on, split and merge, and Spanner is not asked. So an epoch's
seconds are the scheduler's and the store's. Each epoch has to read exactly the partitions that the
script has within it, each by one task.

    python -m bench.executors [--executors 100] [--partitions 100000] [--churn 700] [--span 30]
        [--epochs 10] [--json FILE]
"""

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from bench.ceiling import Load
from bench.figures import tell
from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer
from slackwater.reader.records import ChildPartitionsRecord
from slackwater.scheduler.change_source import Query
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.plan import Task
from slackwater.scheduler.planner import Planner
from slackwater.scheduler.tasks.task import read_task
from slackwater.state.models import Partition
from slackwater.state.store import Store
from slackwater.timestamp import HALF_MICROSECOND_NS, format_rfc3339
from tests.support.change_sources import PlannedSource, QuietQuery
from tests.support.postgres import running_server
from tests.synthetic.script import Script
from tests.synthetic.server import child_record

WARM_UP_EPOCHS: Final = 2
# Besides those of the tasks: those of the driver, and those that PostgreSQL reserves.
OTHER_CONNECTIONS: Final = 10


@dataclass(frozen=True)
class EndOf(QuietQuery):
    """A query whose only records are those of the partition's end."""

    records: tuple[ChildPartitionsRecord, ...]

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        """Give the records."""
        decoder.add_records(consumer, self.records)


class ScriptedLineage(PlannedSource):
    """A ChangeSource of a script's partitions, without their data change records.

    Attributes:
        asked: the tokens of the partitions that were queried.
    """

    partition_mode = PartitionMode.IMMUTABLE_KEY_RANGE
    read_functions = ("",)

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asked: list[str] = []

    def strong_read_timestamp_ns(self) -> int:
        """Return this machine's time."""
        return time.time_ns()

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        """Return the partitions alive at a time."""
        del functions
        return [Partition(p.token, at_ns) for p in self._script.alive(at_ns // 1_000)]

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        """Return a query of a partition's records."""
        assert end_ns is not None, start_ns
        self.asked.append(token)
        partition = self._script.by_key[function, token]
        if partition.end_us is None or partition.end_us * 1_000 > end_ns:
            return EndOf(())
        return EndOf(tuple(map(child_record, self._script.children.get(token, ()))))


# A process that is forked has the script; it opens a store of its own.
_EXECUTOR: dict[str, Any] = {}


def _become_executor(state_url: str) -> None:
    _EXECUTOR["store"] = Store.open(state_url, migrate=False)


def _read(task: Task) -> list[str]:
    """Read a task; return the tokens that it queried."""
    source = ScriptedLineage(_EXECUTOR["script"])
    options = parse_options(_EXECUTOR["options"], {})
    for _ in read_task(task, store=_EXECUTOR["store"], source=source, options=options.read):
        pass
    return source.asked


def read_within(script: Script, start_ns: int, end_ns: int) -> list[str]:
    """Return the tokens of the partitions that an epoch (start, end] reads, sorted."""
    return sorted(
        p.token
        for p in script.partitions
        if p.start_us * 1_000 <= end_ns and (p.end_us is None or p.end_us * 1_000 > start_ns)
    )


def measure(load: Load, executors: int, span_s: float, epochs: int) -> dict[str, Any]:
    """Measure the seconds of planning, tasks and commit: medians after a warm-up.

    Args:
        load: the partitions; its records are not read.
        executors: processes, and tasks an epoch.
        span_s: the seconds of change stream that an epoch covers.
        epochs: how many are measured.
    """
    start_us = time.time_ns() // 1_000 - round(load.seconds * 1e6)
    script = load.script(start_us)
    with ExitStack() as stack:
        url = stack.enter_context(running_server(executors + OTHER_CONNECTIONS))
        Store.open(url, migrate=True).close()
        _EXECUTOR["script"] = script
        _EXECUTOR["options"] = _options(url, start_us, executors)
        context = multiprocessing.get_context("fork")
        pool = stack.enter_context(context.Pool(executors, _become_executor, (url,)))
        store = Store.open(url, migrate=False)
        stack.callback(store.close)
        planner = Planner(parse_options(_EXECUTOR["options"], {}), ScriptedLineage(script), store)
        seconds = list(_epochs(planner, pool, script, span_s, WARM_UP_EPOCHS + epochs))
    measured = seconds[WARM_UP_EPOCHS:]
    return {
        "executors": executors,
        "partitions": load.partitions,
        "changes_a_minute": load.churn,
        "epoch_spans_seconds": span_s,
        **{
            f"{name}_seconds": round(statistics.median(each[name] for each in measured), 2)
            for name in measured[0]
        },
        "epoch_seconds_max": round(max(sum(each.values()) for each in measured), 2),
    }


def _epochs(
    planner: Planner, pool: Any, script: Script, span_s: float, count: int
) -> Iterator[dict[str, float]]:
    """Read epochs, and yield each one's seconds of planning, tasks and commit, by name."""
    start_ns = planner.first_watermark_ns()
    planner.plan_first(start_ns)
    planner.commit(start_ns)
    for _ in range(count):
        end_ns = start_ns + round(span_s * 1e9)
        moments = [time.monotonic()]
        tasks = planner.plan(start_ns, end_ns)
        moments.append(time.monotonic())
        asked = [token for of_task in pool.map(_read, tasks, chunksize=1) for token in of_task]
        moments.append(time.monotonic())
        planner.commit(end_ns)
        moments.append(time.monotonic())
        assert sorted(asked) == read_within(script, start_ns, end_ns)
        start_ns = end_ns
        seconds = (after - before for before, after in pairwise(moments))
        yield dict(zip(("planning", "tasks", "commit"), seconds, strict=True))


def _options(url: str, start_us: int, tasks: int) -> dict[str, str]:
    return {
        "project": "bench-project",
        "instance": "bench",
        "database": "bench",
        "change_stream": "Synthetic",
        "pipeline": "bench",
        "state_url": url,
        "start": format_rfc3339(start_us * 1_000 + HALF_MICROSECOND_NS),
        "tasks": str(tasks),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--executors", type=int, default=100)
    parser.add_argument("--partitions", type=int, default=100_000)
    parser.add_argument("--churn", type=int, default=700)
    parser.add_argument("--span", type=float, default=30.0)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = (WARM_UP_EPOCHS + options.epochs + 2) * options.span
    load = Load(options.partitions, options.partitions, 0, options.churn, seconds)
    tell(measure(load, options.executors, options.span, options.epochs), options.json)


if __name__ == "__main__":
    main()
