"""A simulated change stream whose partitions have mutable key ranges."""

import random
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from slackwater.reader.change_stream import PartitionMode
from slackwater.reader.errors import StartOutsidePartitionError
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.records import (
    ChangeRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
)
from slackwater.state.models import Partition, PartitionKey, Plan
from tests.simulation.answering_stream import AnsweringStream
from tests.simulation.mutable_history import MutableHistory, MutableLife


class MutableStream(AnsweringStream[MutableHistory]):
    """An AnsweringStream whose partitions have mutable key ranges.

    What is hidden is the end record and the start and event records at that time: all but the data.
    """

    partition_mode: ClassVar = PartitionMode.MUTABLE_KEY_RANGE

    def records(
        self, token: str, start_ns: int, end_ns: int | None, function: str = ""
    ) -> list[ChangeRecord]:
        """Return what a query returns.

        Raises:
            StartOutsidePartitionError: as Spanner does.
        """
        key = PartitionKey(function, token)
        life = self.history.lives[key]
        if life.end_ns is not None and start_ns > life.end_ns:
            raise StartOutsidePartitionError("invalid for the partition")
        through_ns = self.clock_ns if end_ns is None else end_ns
        records = [
            record
            for record in self._records[key]
            if start_ns <= record_time_ns(record) <= through_ns
        ]
        if life.end_ns is not None and life.end_ns <= through_ns:
            if end_ns is not None and self.hides(f"{key} {start_ns} {end_ns}", life.end_ns, end_ns):
                return [r for r in records if _is_data(r) or record_time_ns(r) < life.end_ns]
        elif end_ns is None:
            records.append(HeartbeatRecord(through_ns))
        return records

    @property
    def read_functions(self) -> Sequence[str]:
        return [f for f, begin_ns in self.history.begins.items() if begin_ns <= self.clock_ns]

    def partitions_alive(
        self, at_ns: int, functions: Sequence[str] | None = None
    ) -> Sequence[Partition]:
        alive: list[Partition] = []
        for function in self.read_functions if functions is None else functions:
            start_ns = max(at_ns, self.history.begins[function])
            alive += [
                Partition(life.token, start_ns, function=function)
                for life in self.history.alive_at(start_ns)
                if life.function == function
            ]
        return alive

    def expected(self, after_ns: int, through_ns: int) -> list[tuple[str, int, str]]:
        """Return the rows of all records in (after, through]: token, time, record_sequence."""
        return [
            (key.token, record.commit_timestamp_ns, record.record_sequence)
            for key, records in self._records.items()
            for record in records
            if isinstance(record, DataChangeRecord)
            and after_ns < record.commit_timestamp_ns <= through_ns
        ]

    def require_parents_first(self, plan: Plan, token: str) -> None:
        """Do nothing: there are no parents."""

    @cached_property
    def _records(self) -> dict[PartitionKey, Sequence[ChangeRecord]]:
        """All records of each partition in commit order; those at one time in any order."""
        choose = random.Random(self.seed)
        return {key: self._of_life(life, choose) for key, life in self.history.lives.items()}

    def _of_life(self, life: MutableLife, choose: random.Random) -> Sequence[ChangeRecord]:
        records: list[ChangeRecord] = [*life.starts, *life.events]
        records += [self._data_change(life, key, time_ns) for key, time_ns in life.changes]
        choose.shuffle(records)
        # Within a transaction, and only there, record_sequence rises.
        records.sort(key=_order)
        if life.end_ns is not None:
            records.append(PartitionEndRecord(life.end_ns, "f", life.token))
        return records

    def _data_change(self, life: MutableLife, key: int, time_ns: int) -> DataChangeRecord:
        """All changes at a time are one transaction, in several partitions."""
        keys = [of_key for of_key, at_ns in life.changes if at_ns == time_ns]
        return DataChangeRecord(
            time_ns,
            f"t{time_ns}",
            f"{key:08x}",
            key == max(keys),
            "T",
            (),
            (),
            "INSERT",
            "NEW_ROW",
            self._records_at[time_ns],
            self._partitions_at[time_ns],
            "",
            False,
        )

    @cached_property
    def _records_at(self) -> Counter[int]:
        return Counter(at_ns for life in self.history.lives.values() for _, at_ns in life.changes)

    @cached_property
    def _partitions_at(self) -> Counter[int]:
        return Counter(
            at_ns
            for life in self.history.lives.values()
            for at_ns in {at_ns for _, at_ns in life.changes}
        )


def _order(record: ChangeRecord) -> tuple[int, str]:
    # Other records come between those of a transaction.
    middle = f"{2:08x}"
    sequence = record.record_sequence if isinstance(record, DataChangeRecord) else middle
    return record_time_ns(record), sequence


def _is_data(record: ChangeRecord) -> bool:
    return isinstance(record, DataChangeRecord)
