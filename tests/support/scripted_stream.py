"""A change stream whose partitions give what a test says, as Spanner would."""

import threading
from collections.abc import Callable, Sequence
from typing import Final

from slackwater.reader.errors import StartOutsidePartitionError
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.query.batch_decoder import BatchDecoder, RecordConsumer
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
)
from slackwater.scheduler.change_source import Query
from tests.support.change_sources import QuietQuery

_ENDS: Final = (ChildPartitionsRecord, PartitionEndRecord)
# Of a query without an end.
_THROUGH_NS: Final = 10**12


def data(time_ns: int) -> DataChangeRecord:
    """Return a record whose transaction and place in it are named after its time."""
    name = str(time_ns)
    return DataChangeRecord(
        time_ns, name, name, True, "T", (), (), "INSERT", "NEW_ROW", 1, 1, "", False
    )


class ScriptedQuery(QuietQuery):
    """A query that gives records, and can be cancelled."""

    def __init__(self, records: Sequence[ChangeRecord], stream: "ScriptedStream") -> None:
        self._records = records
        self._stream = stream
        self.cancelled = threading.Event()

    def run(self, decoder: BatchDecoder, consumer: RecordConsumer) -> None:
        with self._stream.lock:
            self._stream.running += 1
            self._stream.most = max(self._stream.most, self._stream.running)
        try:
            self._stream.gate(self)
            for record in self._records:
                decoder.add_records(consumer, [record])
                if consumer.is_done:
                    return
        finally:
            with self._stream.lock:
                self._stream.running -= 1

    def cancel(self) -> None:
        self.cancelled.set()


class ScriptedStream:
    """Answers by token; starts after a partition's end are refused.

    Attributes:
        scripts: the records of each partition.
        hiding: the tokens whose queries with an end do not show the partition's.
        asked: token, start and end of each query.
        gate: what a query waits for.
        running, most: how many queries run, and how many did at once.
    """

    def __init__(self, **scripts: Sequence[ChangeRecord]) -> None:
        self.scripts = scripts
        self.hiding: set[str] = set()
        self.asked: list[tuple[str, int, int | None]] = []
        self.gate: Callable[[ScriptedQuery], object] = lambda query: None
        self.lock = threading.Lock()
        self.running = self.most = 0

    def require_same_functions(self) -> None:
        pass

    def query(self, token: str, start_ns: int, end_ns: int | None, function: str = "") -> Query:
        script = self.scripts[token]
        with self.lock:
            self.asked.append((token, start_ns, end_ns))
        if script and isinstance(script[-1], _ENDS):
            if start_ns > record_time_ns(script[-1]):
                raise StartOutsidePartitionError("invalid for the partition")
            if end_ns is not None and token in self.hiding:
                script = script[:-1]
        through_ns = end_ns or _THROUGH_NS
        records = [r for r in script if start_ns <= record_time_ns(r) <= through_ns]
        return ScriptedQuery(records if end_ns else [*records, HeartbeatRecord(through_ns)], self)
