"""Scripts with mutable key ranges, made of random histories."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.records import (
    ChangeRecord,
    ColumnType,
    DataChangeRecord,
    Mod,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from slackwater.timestamp import ns_to_us
from tests.simulation.mutable_history import STEP_NS, MutableHistory, MutableLife
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script, ScriptedPartition

_COLUMNS = (
    ColumnType("Id", '{"code":"INT64"}', True, 1),
    ColumnType("At", '{"code":"INT64"}', False, 2),
)


def scripted(
    history: MutableHistory, dialect: Dialect, *, start_us: int, step_us: int = 1
) -> Script:
    """Return a history as a script.

    Args:
        history: its times count from 0, in steps of a microsecond.
        dialect: of the database.
        start_us: the time 0 of the history.
        step_us: how long its steps take.
    """

    def moved(time_ns: int) -> int:
        return start_us * 1_000 + time_ns // STEP_NS * step_us * 1_000

    mode = PartitionMode.MUTABLE_KEY_RANGE
    partitions = []
    for life in history.lives.values():
        records = [_at(record, moved(record_time_ns(record))) for record in records_of(life)]
        partitions.append(
            ScriptedPartition(
                life.token,
                ns_to_us(moved(life.start_ns)),
                None if life.end_ns is None else ns_to_us(moved(life.end_ns)),
                rows=ListedRows(tuple(records), dialect, mode),
                function=life.function,
            )
        )
    begins_us = {f: ns_to_us(moved(ns)) if ns else 0 for f, ns in history.begins.items()}
    return Script(dialect, tuple(partitions), mode=mode, begins_us=begins_us)


def moving(partitions: int, between_us: tuple[int, int], moves_per_s: int, *, seed: int) -> Script:
    """Return partitions without changes that live on while keys move between them.

    Args:
        partitions: how many there are, from ten seconds before.
        between_us: when keys move, microseconds.
        moves_per_s: how many times a second.
        seed: chooses the partitions.
    """
    choose = random.Random(seed)
    start_us, end_us = between_us
    tokens = [f"p{number:06}" for number in range(partitions)]
    events: dict[str, list[ChangeRecord]] = {token: [] for token in tokens}
    for number, time_us in enumerate(range(start_us, end_us, 1_000_000 // moves_per_s)):
        source, destination = choose.sample(tokens, 2)
        out, into = f"{number:016x}-00000000", f"{number:016x}-00000001"
        time_ns = time_us * 1_000
        events[source].append(PartitionEventRecord(time_ns, out, source, (), (destination,)))
        events[destination].append(PartitionEventRecord(time_ns, into, destination, (source,), ()))
    dialect, mode = Dialect.GOOGLE_STANDARD_SQL, PartitionMode.MUTABLE_KEY_RANGE
    return Script(
        dialect,
        tuple(
            ScriptedPartition(
                token, start_us - 10_000_000, rows=ListedRows(tuple(of_token), dialect, mode)
            )
            for token, of_token in events.items()
        ),
        mode=mode,
    )


def records_of(life: MutableLife) -> Sequence[ChangeRecord]:
    """All records of a partition in commit order, its end record last."""
    records: list[ChangeRecord] = [
        *life.starts,
        *life.events,
        *(data_change(key, time_ns) for key, time_ns in life.changes),
    ]
    records.sort(key=record_time_ns)
    if life.end_ns is not None:
        records.append(PartitionEndRecord(life.end_ns, "ffffffffffffffff-00000000", life.token))
    return records


def data_change(key: int, time_ns: int) -> DataChangeRecord:
    """The change of one row, which is a transaction of its own."""
    return DataChangeRecord(
        time_ns,
        f"{time_ns}-{key}",
        f"{time_ns * 10 + key:016x}-00000000",
        True,
        "Accounts",
        _COLUMNS,
        (Mod(f'{{"Id":"{key}"}}', f'{{"At":"{time_ns}"}}', "{}"),),
        "UPDATE",
        "NEW_VALUES",
        1,
        1,
        "",
        False,
    )


def _at(record: ChangeRecord, time_ns: int) -> ChangeRecord:
    match record:
        case DataChangeRecord():
            return record._replace(commit_timestamp_ns=time_ns)
        case PartitionStartRecord():
            return replace(record, start_timestamp_ns=time_ns)
        case PartitionEventRecord():
            return replace(record, commit_timestamp_ns=time_ns)
        case PartitionEndRecord():
            return replace(record, end_timestamp_ns=time_ns)
    raise TypeError(record)
