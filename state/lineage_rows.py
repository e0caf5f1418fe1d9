"""Partitions as rows of the metadata store's tables: read, added and replaced."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from slackwater.state.models import Partition, PartitionKey
from slackwater.state.tables import partition_parents, partitions, pipelines

T = TypeVar("T")

# Databases limit the number of parameters in a statement; SQLite's old limit was 999.
_CHUNK: Final = 400

_P: Final = partitions.c
FACTS: Final = (
    _P.function,
    _P.token,
    _P.start_timestamp_ns,
    _P.end_timestamp_ns,
    _P.end_confirmed_in_epoch_ns,
    _P.start_confirmed_in_epoch_ns,
)
_LINK: Final = partition_parents.c
LINKS: Final = (_LINK.function, _LINK.token, _LINK.parent_token)


def read_partitions(connection: sa.Connection, pipeline: str) -> list[Partition]:
    """Return all partitions of a pipeline, ordered by start."""
    facts = sa.select(*FACTS).where(_P.pipeline == pipeline)
    links = sa.select(*LINKS).where(_LINK.pipeline == pipeline)
    return assemble(
        connection.execute(facts.order_by(_P.start_timestamp_ns, _P.function, _P.token)),
        connection.execute(links),
    )


def count_unfinished(connection: sa.Connection, pipeline: str, watermark_ns: int) -> int:
    """Return how many partitions are not finished at a low watermark, by lineage.is_finished().

    There may be a hundred thousand, and this is asked after each epoch.
    """
    unfinished = sa.or_(
        _P.end_timestamp_ns.is_(None),
        _P.end_confirmed_in_epoch_ns.is_(None),
        _P.end_timestamp_ns > watermark_ns,
        _P.end_confirmed_in_epoch_ns >= watermark_ns,
    )
    count = sa.select(sa.func.count()).where(_P.pipeline == pipeline, unfinished)
    return int(connection.execute(count).scalar_one())


def assemble(facts: Iterable[Any], links: Iterable[Any]) -> list[Partition]:
    """Return partitions from rows of FACTS and of LINKS."""
    parents: dict[tuple[str, str], set[str]] = {}
    for function, token, parent in links:
        parents.setdefault((function, token), set()).add(parent)
    return [
        Partition(
            token,
            start_ns,
            frozenset(parents.get((function, token), ())),
            end_ns,
            end_confirmed_ns,
            start_confirmed_ns,
            function,
        )
        for function, token, start_ns, end_ns, end_confirmed_ns, start_confirmed_ns in facts
    ]


def add_partitions(connection: sa.Connection, pipeline: str, new: Iterable[Partition]) -> None:
    """Add partitions, with their parents; the store must have none of them yet."""
    ordered = sorted(new, key=lambda p: p.key)
    _insert(
        connection,
        partitions,
        [
            {
                "pipeline": pipeline,
                "function": p.function,
                "token": p.token,
                "start_timestamp_ns": p.start_timestamp_ns,
                "start_confirmed_in_epoch_ns": p.start_confirmed_in_epoch_ns,
                "end_timestamp_ns": p.end_timestamp_ns,
                "end_confirmed_in_epoch_ns": p.end_confirmed_in_epoch_ns,
                "stalls": 0,
            }
            for p in ordered
        ],
    )
    _insert(
        connection,
        partition_parents,
        [
            {"pipeline": pipeline, **p.key._asdict(), "parent_token": parent}
            for p in ordered
            for parent in sorted(p.parents)
        ],
    )


def delete_partitions(
    connection: sa.Connection, pipeline: str, keys: Collection[PartitionKey]
) -> None:
    """Delete partitions, also as parents of others."""
    for table, token in (
        (partitions, _P.token),
        (partition_parents, _LINK.token),
        (partition_parents, _LINK.parent_token),
    ):
        for condition in key_conditions(keys, table.c.function, token):
            connection.execute(sa.delete(table).where(table.c.pipeline == pipeline, condition))


def replace_lineage(
    connection: sa.Connection, pipeline: str, alive: Sequence[Partition], mode: str | None
) -> None:
    """Remove a pipeline's partitions, and begin again with these, as Store.replace_partitions."""
    for table in (partitions, partition_parents):
        connection.execute(sa.delete(table).where(table.c.pipeline == pipeline))
    add_partitions(connection, pipeline, alive)
    since_ns = min((p.start_timestamp_ns for p in alive), default=None)
    connection.execute(
        sa.update(pipelines)
        .where(pipelines.c.name == pipeline)
        .values(partition_mode=mode, starts_since_ns=since_ns)
    )


def key_conditions(
    keys: Iterable[PartitionKey], function: sa.Column[str], token: sa.Column[str]
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions on the two columns that together select these partitions."""
    by_function: dict[str, list[str]] = {}
    for key in sorted(keys):
        by_function.setdefault(key.function, []).append(key.token)
    for name, tokens in by_function.items():
        for chunk in chunks(tokens):
            yield sa.and_(function == name, token.in_(chunk))


def chunks(values: Collection[T]) -> Iterator[list[T]]:
    """Yield the values in lists that are short enough for one statement."""
    iterator = iter(values)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sa.insert(table), rows)
