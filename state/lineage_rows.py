"""Partitions as rows of the metadata store's tables: how they are read, added and replaced."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from slackwater.state.models import MutablePartition, Partition, PartitionKey
from slackwater.state.tables import (
    mutable_lineages,
    mutable_partitions,
    partition_parents,
    partitions,
)

T = TypeVar("T")

# Databases limit the number of parameters in a statement; SQLite's old limit was 999.
_CHUNK: Final = 400


def read_partitions(connection: sa.Connection, pipeline: str) -> list[Partition]:
    """Return all partitions of a pipeline but those with mutable ranges, ordered by start."""
    p, link = partitions, partition_parents
    rows = sa.select(p).where(p.c.pipeline == pipeline)
    links = sa.select(link).where(link.c.pipeline == pipeline)
    return assemble(
        connection.execute(rows.order_by(p.c.start_timestamp_ns, p.c.token)),
        connection.execute(links),
    )


def read_mutable_partitions(connection: sa.Connection, pipeline: str) -> list[MutablePartition]:
    """Return all partitions of a pipeline with mutable key ranges, ordered by start."""
    c = mutable_partitions.c
    rows = sa.select(mutable_partitions).where(c.pipeline == pipeline)
    return assemble_mutable(
        connection.execute(rows.order_by(c.start_timestamp_ns, c.function, c.token))
    )


def assemble(rows: Iterable[Any], links: Iterable[Any]) -> list[Partition]:
    """Return partitions from rows of the tables partitions and partition_parents."""
    parents: dict[str, set[str]] = {}
    for link in links:
        parents.setdefault(link.token, set()).add(link.parent_token)
    return [
        Partition(
            row.token,
            row.start_timestamp_ns,
            frozenset(parents.get(row.token, ())),
            row.end_timestamp_ns,
            row.end_confirmed_in_epoch_ns,
        )
        for row in rows
    ]


def assemble_mutable(rows: Iterable[Any]) -> list[MutablePartition]:
    """Return partitions from rows of the table mutable_partitions."""
    return [
        MutablePartition(
            row.token,
            row.start_timestamp_ns,
            end_timestamp_ns=row.end_timestamp_ns,
            end_confirmed_in_epoch_ns=row.end_confirmed_in_epoch_ns,
            start_confirmed_in_epoch_ns=row.start_confirmed_in_epoch_ns,
            function=row.function,
        )
        for row in rows
    ]


def add_partitions(connection: sa.Connection, pipeline: str, new: Sequence[Partition]) -> None:
    """Add partitions, with their parents; the store must have none of them yet."""
    _insert(
        connection,
        partitions,
        [
            {
                "pipeline": pipeline,
                "token": p.token,
                "start_timestamp_ns": p.start_timestamp_ns,
                "end_timestamp_ns": p.end_timestamp_ns,
                "end_confirmed_in_epoch_ns": p.end_confirmed_in_epoch_ns,
                "stalls": 0,
            }
            for p in new
        ],
    )
    _insert(
        connection,
        partition_parents,
        [
            {"pipeline": pipeline, "token": p.token, "parent_token": parent}
            for p in new
            for parent in sorted(p.parents)
        ],
    )


def add_mutable_partitions(
    connection: sa.Connection, pipeline: str, new: Collection[MutablePartition]
) -> None:
    """Add partitions with mutable key ranges; the store must have none of them yet."""
    _insert(
        connection,
        mutable_partitions,
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
            for p in sorted(new, key=lambda p: p.key)
        ],
    )


def replace_lineage(connection: sa.Connection, pipeline: str, alive: Sequence[Partition]) -> None:
    """Remove a pipeline's partitions, of either kind, and begin again with these, all of one kind.

    They start at the low watermark at which they were found.
    """
    for table in (partitions, partition_parents, mutable_partitions, mutable_lineages):
        connection.execute(sa.delete(table).where(table.c.pipeline == pipeline))
    mutable = [p for p in alive if isinstance(p, MutablePartition)]
    if not mutable:
        add_partitions(connection, pipeline, alive)
        return
    add_mutable_partitions(connection, pipeline, mutable)
    since_ns = min(p.start_timestamp_ns for p in mutable)
    connection.execute(sa.insert(mutable_lineages), {"pipeline": pipeline, "since_ns": since_ns})


def key_conditions(
    table: sa.Table, keys: Iterable[PartitionKey]
) -> Iterator[sa.ColumnElement[bool]]:
    """Yield conditions on the columns function and token that together select these partitions."""
    by_function: dict[str, list[str]] = {}
    for key in sorted(keys):
        by_function.setdefault(key.function, []).append(key.token)
    for function, tokens in by_function.items():
        for chunk in chunks(tokens):
            yield sa.and_(table.c.function == function, table.c.token.in_(chunk))


def chunks(values: Collection[T]) -> Iterator[list[T]]:
    """Yield the values in lists that are short enough for one statement."""
    iterator = iter(values)
    while chunk := list(islice(iterator, _CHUNK)):
        yield chunk


def _insert(connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sa.insert(table), rows)
