"""The metrics of a plan's tasks, measured while they read and used by monitoring."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass, field

import sqlalchemy as sa

from slackwater.state.store import Store
from slackwater.state.tables import plan_task_metrics


@dataclass(frozen=True, slots=True)
class TracedQuery:
    """The start and end of a partition query, in nanoseconds by its task's clock."""

    token: str
    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class TaskMetrics:
    """The metrics of one task, or their sums over a whole plan.

    Attributes:
        size_bytes: the size of the records in Arrow.
        queries: the number of partition queries that were run to their ends.
        retries: how often queries were opened again, by gRPC's status code; OK counts queries that
            ended with OK before they were complete.
        stalls: how often queries were cancelled because they were silent.
        mods: the number of mods, by (table_name, mod_type).
        committed: the number of records by the time of their commit; the plan's span is divided
            into COMMITTED_STEPS steps.
        child_delays_ms: times from the end of a child partition's last parent to its own first
            query.
        traced: the longest queries of each task, if queries are traced.
        begun_ns: when the first task began, by its own clock; None if that is not known.
    """

    size_bytes: int = 0
    queries: int = 0
    retries: Counter[str] = field(default_factory=Counter)
    stalls: int = 0
    mods: Counter[tuple[str, str]] = field(default_factory=Counter)
    committed: Counter[int] = field(default_factory=Counter)
    child_delays_ms: tuple[int, ...] = ()
    traced: tuple[TracedQuery, ...] = ()
    begun_ns: int | None = None


# A plan's span is divided into this many steps; step 0 includes late records.
COMMITTED_STEPS = 50


def sum_metrics(summands: Iterable[TaskMetrics]) -> TaskMetrics:
    """Return the sums of the metrics of several tasks."""
    tasks = list(summands)
    return TaskMetrics(
        size_bytes=sum(task.size_bytes for task in tasks),
        queries=sum(task.queries for task in tasks),
        retries=sum((task.retries for task in tasks), Counter()),
        stalls=sum(task.stalls for task in tasks),
        mods=sum((task.mods for task in tasks), Counter()),
        committed=sum((task.committed for task in tasks), Counter()),
        child_delays_ms=tuple(ms for task in tasks for ms in task.child_delays_ms),
        traced=tuple(query for task in tasks for query in task.traced),
        begun_ns=min((t.begun_ns for t in tasks if t.begun_ns is not None), default=None),
    )


def record_task_metrics(store: Store, plan_id: str, task: int, metrics: TaskMetrics) -> None:
    """Record a task's metrics; they replace those of an earlier attempt.

    Raises:
        StateError: the store can't be reached.
    """
    table = plan_task_metrics
    row = {"plan_id": plan_id, "task": task, "metrics": _to_json(metrics)}

    def work(connection: sa.Connection) -> None:
        connection.execute(sa.delete(table).where(table.c.plan_id == plan_id, table.c.task == task))
        connection.execute(sa.insert(table), row)

    store.write(work)


def read_task_metrics(store: Store, plan_id: str) -> TaskMetrics:
    """Return the metrics of a plan's tasks, added up.

    Raises:
        StateError: the store can't be reached.
    """
    statement = sa.select(plan_task_metrics.c.metrics).where(plan_task_metrics.c.plan_id == plan_id)
    texts = store.read(lambda c: list(c.execute(statement).scalars()))
    return sum_metrics(map(_from_json, texts))


def _to_json(metrics: TaskMetrics) -> str:
    return json.dumps(
        {
            "size_bytes": metrics.size_bytes,
            "queries": metrics.queries,
            "retries": metrics.retries,
            "stalls": metrics.stalls,
            "mods": [[*key, count] for key, count in metrics.mods.items()],
            "committed": list(metrics.committed.items()),
            "child_delays_ms": metrics.child_delays_ms,
            "traced": [astuple(query) for query in metrics.traced],
            "begun_ns": metrics.begun_ns,
        }
    )


def _from_json(text: str) -> TaskMetrics:
    fields = json.loads(text)
    return TaskMetrics(
        size_bytes=fields["size_bytes"],
        queries=fields["queries"],
        retries=Counter(fields["retries"]),
        stalls=fields["stalls"],
        mods=Counter({(table, kind): count for table, kind, count in fields["mods"]}),
        committed=Counter(dict(fields["committed"])),
        child_delays_ms=tuple(fields["child_delays_ms"]),
        traced=tuple(TracedQuery(*query) for query in fields["traced"]),
        begun_ns=fields["begun_ns"],
    )
