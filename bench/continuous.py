"""A sketch of continuous reading: queries that stay open, compared with bounded queries.

The service asks each partition once an epoch, with an end_timestamp. The sketch leaves each
partition's query open; its low watermark is the lowest time that all of them have shown, by
records and heartbeats. Both read the same synthetic server, one after the other, without Spark,
and decode what they read.

    python -m bench.continuous [--partitions 1000] [--every 1] [--records 1000] [--seconds 30]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc.aio
import psutil
import pyarrow as pa
from google.cloud.spanner_v1.types import ExecuteSqlRequest, Type

from bench.figures import tell
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.decode.records import ChangeRecordDecoder
from slackwater.reader.partition_progress import record_time_ns
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners, QueryStream, Rows
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import ChangeRecord, DataChangeRecord, HeartbeatRecord
from slackwater.reader.transport.connection import Connection
from slackwater.reader.transport.statement import partition_query
from tests.synthetic.rows import PatternRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

_METHOD: Final = "/google.spanner.v1.Spanner/ExecuteStreamingSql"
# Spanner's front end allows 100 streams on a connection.
_STREAMS_PER_CHANNEL: Final = 90
_CONCURRENT_QUERIES: Final = 16
_WARM_UP_S: Final = 10


@dataclass(frozen=True, slots=True)
class Load:
    """What is read.

    Attributes:
        partitions: how many there are.
        every_s: an epoch, seconds; continuous reading asks for a heartbeat as often.
        records_per_s: of all partitions together.
    """

    partitions: int
    every_s: int
    records_per_s: int

    def script(self, start_us: int) -> Script:
        """Return the change stream, whose records come at even distances for an hour."""
        every_us = 1_000_000 * self.partitions // self.records_per_s
        partitions = [
            ScriptedPartition(
                _token(number),
                start_us - 10_000_000,
                rows=PatternRows(
                    number,
                    start_us + every_us * number // self.partitions,
                    every_us,
                    3_600_000_000 // every_us,
                ),
            )
            for number in range(self.partitions)
        ]
        return Script(Dialect.GOOGLE_STANDARD_SQL, tuple(partitions))


@dataclass(slots=True)
class Read:
    """What a reader counts; freshness is the age of an epoch's records when all are there."""

    queries: int = 0
    messages: int = 0
    wire_bytes: int = 0
    records: int = 0
    freshness_s: list[float] = field(default_factory=list)

    def add_message(self, message: bytes) -> None:
        """Count a message."""
        self.messages += 1
        self.wire_bytes += len(message)


class _CountingDecoder(BatchDecoder):
    def __init__(self, read: Read) -> None:
        super().__init__(self._count)
        self._read = read

    def _count(self, batch: pa.RecordBatch, _owners: Owners) -> None:
        self._read.records += batch.num_rows

    def add(self, stream: QueryStream, messages: list[bytes]) -> None:
        for message in messages:
            self._read.add_message(message)
        super().add(stream, messages)


@dataclass(frozen=True, slots=True)
class _TakeAll:
    token: str
    is_done: bool = False

    def take_rows(self, rows: Rows) -> None:
        """All are wanted."""

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        return [record for record in records if isinstance(record, DataChangeRecord)]


Reader = Callable[[Load, ChangeStream, int], dict[str, Any]]


def bounded(load: Load, stream: ChangeStream, seconds: int) -> dict[str, Any]:
    """Read epoch by epoch, with a query a partition and epoch."""
    read = Read()
    connection = Connection(stream)
    connection.reserve(_CONCURRENT_QUERIES)

    def ask(number: int, start_ns: int, end_ns: int, decoder: BatchDecoder) -> None:
        query = PartitionQuery(
            connection,
            Dialect.GOOGLE_STANDARD_SQL,
            partition_token=_token(number),
            start_timestamp_ns=start_ns,
            end_timestamp_ns=end_ns,
            heartbeat_ms=10_000,
        )
        query.run(decoder, _TakeAll(_token(number)))

    with ThreadPoolExecutor(_CONCURRENT_QUERIES) as pool:
        start_ns = _now_ns()

        def epoch() -> None:
            nonlocal start_ns
            end_ns, decoder = _now_ns(), _CountingDecoder(read)
            asked = [
                pool.submit(ask, number, start_ns, end_ns, decoder)
                for number in range(load.partitions)
            ]
            for answer in asked:
                answer.result()
            decoder.deliver_remaining()
            read.queries += load.partitions
            read.freshness_s.append((_now_ns() - (start_ns + end_ns) / 2) / 1e9)
            start_ns = end_ns + 1

        def epochs(until_s: float) -> None:
            while time.monotonic() < until_s:
                begun_s = time.monotonic()
                epoch()
                time.sleep(max(0.0, begun_s + load.every_s - time.monotonic()))

        epochs(time.monotonic() + _WARM_UP_S)
        with _measuring(read) as figures:
            epochs(time.monotonic() + seconds)
    connection.close()
    return figures


def continuous(load: Load, stream: ChangeStream, seconds: int) -> dict[str, Any]:
    """Read with queries that stay open; an epoch ends at the lowest time that all have shown."""
    return asyncio.run(_continuous(load, stream, seconds))


async def _continuous(load: Load, stream: ChangeStream, seconds: int) -> dict[str, Any]:
    read = Read()
    start_ns = _now_ns()
    shown_ns = [start_ns] * load.partitions
    channels = [
        grpc.aio.insecure_channel(
            str(stream.emulator_host), options=(("grpc.use_local_subchannel_pool", 1),)
        )
        for _ in range(-(-load.partitions // _STREAMS_PER_CHANNEL))
    ]
    stubs = [channel.unary_stream(_METHOD) for channel in channels]

    async def follow(number: int) -> None:
        decoder = ChangeRecordDecoder()
        read.queries += 1
        request = _request(stream, _token(number), start_ns, load.every_s * 1_000)
        async for message in stubs[number % len(stubs)](request):
            read.add_message(message)
            for record in decoder.feed(message):
                is_heartbeat = isinstance(record, HeartbeatRecord)
                read.records += not is_heartbeat
                shown_ns[number] = record_time_ns(record) - (not is_heartbeat)

    async def epochs(until_s: float) -> None:
        from_ns = min(shown_ns)
        while time.monotonic() < until_s:
            await asyncio.sleep(load.every_s)
            through_ns = min(shown_ns)
            read.freshness_s.append((_now_ns() - (from_ns + through_ns) / 2) / 1e9)
            from_ns = through_ns

    following = [asyncio.ensure_future(follow(number)) for number in range(load.partitions)]
    while min(shown_ns) == start_ns:
        await asyncio.sleep(0.1)
    await epochs(time.monotonic() + _WARM_UP_S)
    with _measuring(read) as figures:
        await epochs(time.monotonic() + seconds)
    for one in following:
        one.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return figures


def _request(stream: ChangeStream, token: str, start_ns: int, heartbeat_ms: int) -> bytes:
    statement = partition_query(
        Dialect.GOOGLE_STANDARD_SQL,
        stream.change_stream,
        start_timestamp_ns=start_ns,
        end_timestamp_ns=None,
        partition_token=token,
        heartbeat_ms=heartbeat_ms,
    )
    request = ExecuteSqlRequest(
        session=f"{stream.database_path}/sessions/one",
        sql=statement.sql,
        params={name: value for name, value in statement.params.items() if value is not None},
        param_types={name: Type(code=code) for name, code in statement.types.items()},
    )
    return bytes(ExecuteSqlRequest.serialize(request))


@contextmanager
def _measuring(read: Read) -> Iterator[dict[str, Any]]:
    """Yield a dict that is filled at the end: what was counted and spent meanwhile, a second."""
    figures: dict[str, Any] = {}
    counted = (read.queries, read.messages, read.wire_bytes, read.records)
    read.freshness_s.clear()
    began_s, cpu_s, server_s = time.monotonic(), time.process_time(), _server_cpu_seconds()
    yield figures
    seconds = time.monotonic() - began_s
    names = ("queries", "messages", "bytes", "records")
    now = (read.queries, read.messages, read.wire_bytes, read.records)
    for name, before, after in zip(names, counted, now, strict=True):
        figures[f"{name}_per_second"] = round((after - before) / seconds, 1)
    figures["queries_in_all"] = read.queries
    figures["reader_cpu_share"] = round((time.process_time() - cpu_s) / seconds, 3)
    figures["server_cpu_share"] = round((_server_cpu_seconds() - server_s) / seconds, 3)
    figures["freshness_median_s"] = round(statistics.median(read.freshness_s), 3)
    figures["reader_mib"] = round(psutil.Process().memory_info().rss / 2**20)


def _server_cpu_seconds() -> float:
    times = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return float(sum(spent.user + spent.system for spent in times))


def _token(number: int) -> str:
    return f"p{number:06}"


def _now_ns() -> int:
    return time.time_ns() // 1_000 * 1_000


def measure(load: Load, seconds: int) -> dict[str, Any]:
    """Measure both ways on a server of their own each."""
    figures: dict[str, Any] = {
        "partitions": load.partitions,
        "epoch_seconds": load.every_s,
        "records_asked_per_second": load.records_per_s,
    }
    readers: tuple[Reader, ...] = (bounded, continuous)
    for reader in readers:
        with synthetic_process(load.script(_now_ns() // 1_000)) as host:
            stream = ChangeStream("bench", "bench", "bench", CHANGE_STREAM, emulator_host=host)
            figures[reader.__name__] = reader(load, stream, seconds)
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--every", type=int, default=1, help="seconds")
    parser.add_argument("--records", type=int, default=1_000, help="a second")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    load = Load(options.partitions, options.every, options.records)
    tell(measure(load, options.seconds), options.json)


if __name__ == "__main__":
    main()
