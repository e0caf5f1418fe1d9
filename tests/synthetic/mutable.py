"""Streams with mutable key ranges, made of random histories and random transactions."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.records import (
    ChangeRecord,
    DataChangeRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from slackwater.state.models import PartitionKey
from slackwater.testing.plain_client import Truth, TruthRecord, canonical
from slackwater.timestamp import format_rfc3339, ns_to_us
from tests.simulation.mutable_history import (
    PLACEMENTS,
    STEP_NS,
    MutableHistory,
    MutableLife,
    random_mutable_history,
)
from tests.support.mixed_load import Key
from tests.synthetic.mutable_changes import (
    CAPTURES,
    Changes,
    Database,
    Row,
    records_of_transaction,
)
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script, ScriptedPartition

_MODE: Final = PartitionMode.MUTABLE_KEY_RANGE


@dataclass(frozen=True)
class MutableStream:
    """A stream whose partitions have mutable key ranges, and what is true of it.

    Attributes:
        script: the stream, as its server plays it.
        rows: those that remain, by table, with all columns as JSON in change records has them.
    """

    script: Script
    rows: Mapping[str, Sequence[Row]]

    def partition_records(self) -> list[ChangeRecord]:
        """Return the records that say what begins, ends and moves."""
        return [r for _, r in self._records() if not isinstance(r, DataChangeRecord)]

    def records(self, after_us: int = 0) -> list[tuple[str, DataChangeRecord]]:
        """Return the data change records after a time, each with its partition's token."""
        return [
            (token, record)
            for token, record in self._records()
            if isinstance(record, DataChangeRecord)
            and record.commit_timestamp_ns > after_us * 1_000
        ]

    def truth(self) -> Truth:
        """Return the data change records as a plain client's, in commit order."""
        records = sorted(
            TruthRecord(
                format_rfc3339(record.commit_timestamp_ns),
                record.server_transaction_id,
                record.record_sequence,
                record.table_name,
                tuple(
                    (canonical(mod.keys), canonical(mod.new_values), canonical(mod.old_values))
                    for mod in record.mods
                ),
                record.mod_type,
            )
            for _, record in self.records()
        )
        return Truth(records, [])

    def last_us(self) -> int:
        """Return the time of the last record."""
        return max(record_time_ns(record) for _, record in self._records()) // 1_000

    def _records(self) -> Iterator[tuple[str, ChangeRecord]]:
        for partition in self.script.partitions:
            if isinstance(partition.rows, ListedRows):
                for record in partition.rows.records:
                    yield partition.token, record


def mutable_stream(
    seed: int,
    *,
    start_us: int,
    step_us: int,
    steps: int | None = None,
    dialect: Dialect | None = None,
    capture: str | None = None,
    functions: Sequence[str] | None = None,
    adds: bool | None = None,
) -> MutableStream:
    """Return the stream of a seed: its partitions, and the transactions that their records are of.

    Args:
        seed: chooses everything that is not stated.
        start_us: when its partitions begin.
        step_us: the time between two commits.
        steps: how many times something is committed; None for a few.
        dialect: of the database.
        capture: the value capture type.
        functions: the read functions. Two of three seeds have one for each of three placements.
        adds: True if the last function begins while the history goes on, as half of those do.
    """
    dialect = dialect or list(Dialect)[seed % 2]
    functions = functions or (PLACEMENTS if seed % 3 else ("",))
    adds = seed % 3 == 1 if adds is None else adds
    capture = capture or CAPTURES[seed // 2 % len(CAPTURES)]
    history = random_mutable_history(
        random.Random(seed), steps=steps, functions=functions, adds=adds
    )

    def moved_ns(time_ns: int) -> int:
        return (start_us + time_ns // STEP_NS * step_us) * 1_000

    database = Database()
    data = _data_changes(history, database, seed, capture, dialect)
    partitions = []
    for key, life in history.lives.items():
        records = _in_order(life, data[key])
        listed = tuple(_at(record, moved_ns(record_time_ns(record))) for record in records)
        partitions.append(
            ScriptedPartition(
                life.token,
                ns_to_us(moved_ns(life.start_ns)),
                None if life.end_ns is None else ns_to_us(moved_ns(life.end_ns)),
                rows=ListedRows(listed, dialect, _MODE),
                function=life.function,
            )
        )
    begins_us = {f: ns_to_us(moved_ns(ns)) if ns else 0 for f, ns in history.begins.items()}
    script = Script(
        dialect, tuple(partitions), mode=_MODE, begins_us=begins_us, value_capture_type=capture
    )
    return MutableStream(script, database.remaining())


def _data_changes(
    history: MutableHistory, database: Database, seed: int, capture: str, dialect: Dialect
) -> Mapping[PartitionKey, Sequence[DataChangeRecord]]:
    """Write random transactions to a database, and return their records by partition.

    Those of one time change different rows.
    """
    owners: dict[int, dict[int, PartitionKey]] = {}
    for life in history.lives.values():
        for key_range, time_ns in life.changes:
            owners.setdefault(time_ns, {})[key_range] = life.key
    choose = random.Random(seed)
    changes = Changes(database, seed=seed)
    records: dict[PartitionKey, list[DataChangeRecord]] = {key: [] for key in history.lives}
    number = 0
    for time_ns, of_ranges in sorted(owners.items()):
        changed: set[tuple[str, Key]] = set()
        for _ in range(choose.randint(1, 3)):
            number += 1
            changes.transaction(changed, changes_max=choose.choice((3, 20)))
            for key, record in records_of_transaction(
                number, time_ns, database.changes, capture, dialect, of_ranges
            ):
                records[key].append(record)
    return records


def _in_order(life: MutableLife, data: Sequence[DataChangeRecord]) -> Sequence[ChangeRecord]:
    """Return all records of a partition in commit order, its end record last.

    Those of transactions with one commit timestamp come by turns.
    """
    by_turns = sorted(data, key=lambda record: record.record_sequence.rpartition("-")[2])
    records: list[ChangeRecord] = [*life.starts, *life.events, *by_turns]
    records.sort(key=record_time_ns)
    if life.end_ns is not None:
        records.append(PartitionEndRecord(life.end_ns, "ffffffffffffffff-00000000", life.token))
    return records


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
    dialect = Dialect.GOOGLE_STANDARD_SQL
    return Script(
        dialect,
        tuple(
            ScriptedPartition(
                token, start_us - 10_000_000, rows=ListedRows(tuple(of_token), dialect, _MODE)
            )
            for token, of_token in events.items()
        ),
        mode=_MODE,
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
