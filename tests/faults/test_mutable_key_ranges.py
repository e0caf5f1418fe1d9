"""Partitions with mutable key ranges, read from a server that speaks Spanner's protocol."""

import base64
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pytest
from google.cloud.spanner_v1 import param_types
from google.cloud.spanner_v1.types import ChangeStreamRecord
from tenacity import wait_random_exponential

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect, PartitionMode
from slackwater.reader.database.change_stream_info import (
    partitions_alive,
    read_change_stream_info,
)
from slackwater.reader.errors import (
    InvalidQueryError,
    StartTooOldError,
    StreamAlteredError,
    UnavailableError,
)
from slackwater.reader.query.batch_decoder import BatchDecoder, Owners
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.query.rows import Rows
from slackwater.reader.query_window import QUERY_SPAN_MAX_NS
from slackwater.reader.records import (
    ChangeRecord,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.lineage import announced
from slackwater.scheduler.moves import count_moves
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.state.models import Partition
from slackwater.testing.emulator_database import database_of
from slackwater.timestamp import format_rfc3339
from tests.faults import mutable_seeded
from tests.faults.proxy import Breaks, FaultProxy
from tests.simulation.mutable_history import PLACEMENTS
from tests.synthetic.mutable import mutable_stream
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import CHANGE_STREAM, SyntheticSpanner

START_US = 1_769_850_000_000_000
MODE = PartitionMode.MUTABLE_KEY_RANGE
DIALECTS = pytest.mark.parametrize("dialect", list(Dialect))


class Collected:
    """A consumer that keeps all records, and of each its kind and record_sequence."""

    is_done = False

    def __init__(self, token: str) -> None:
        self.token = token
        self.records: list[ChangeRecord] = []
        self.outlines: list[tuple[str, str]] = []
        self.by_column = 0

    def take_rows(self, rows: Rows) -> None:
        sequences = rows.batch.column("record_sequence").to_pylist()
        self.outlines += [("DataChangeRecord", sequence) for sequence in sequences]
        self.by_column += len(sequences)

    def take_records(self, records: Sequence[ChangeRecord]) -> Sequence[DataChangeRecord]:
        self.records += [r for r in records if not isinstance(r, HeartbeatRecord)]
        self.outlines += outlines(records)
        return [r for r in records if isinstance(r, DataChangeRecord)]


def outlines(records: Sequence[ChangeRecord]) -> list[tuple[str, str]]:
    return [
        (type(record).__name__, record.record_sequence)
        for record in records
        if not isinstance(record, HeartbeatRecord)
    ]


def stream_at(host: str) -> ChangeStream:
    return ChangeStream("test-project", "test", "db", CHANGE_STREAM, endpoint=plaintext(host))


def script_of(seed: int, dialect: Dialect, *, step_us: int = 1_000) -> Script:
    return mutable_stream(
        seed, start_us=START_US, step_us=step_us, dialect=dialect, functions=("",), adds=False
    ).script


def times_of(script: Script) -> tuple[int, int]:
    """When a script begins and when all of it is over, nanoseconds."""
    last = max(p.rows.time_us(len(p.rows) - 1) for p in script.partitions if len(p.rows))
    return START_US * 1_000, last * 1_000 + 500


def query_of(
    connection: Connection, dialect: Dialect, token: str, start_ns: int, end_ns: int | None
) -> PartitionQuery:
    return PartitionQuery(
        connection,
        dialect,
        partition_token=token,
        start_timestamp_ns=start_ns,
        end_timestamp_ns=end_ns,
        heartbeat_ms=300_000,
        mode=MODE,
    )


def records_of(partition: ScriptedPartition) -> list[ChangeRecord]:
    assert isinstance(partition.rows, ListedRows)
    return list(partition.rows.records)


@DIALECTS
def test_a_broken_query_gives_each_record_of_each_kind_once(dialect: Dialect) -> None:
    script = script_of(33, dialect)
    delivered = Counter[str]()
    by_column = 0

    def deliver(batch: pa.RecordBatch, owners: Owners) -> None:
        for token, count in owners:
            delivered[token] += count

    with (
        SyntheticSpanner(script) as server,
        FaultProxy(server.host, [Breaks(0.7, messages_max=6)], seed=4) as proxy,
        patch("slackwater.reader.query.reopened_query._WAIT", wait_random_exponential(0.01, 0.1)),
        patch("slackwater.reader.query.batch_decoder._BY_COLUMN_BYTES_MIN", 0),
        ExitStack() as stack,
    ):
        connection = Connection(stream_at(proxy.host))
        stack.callback(connection.close)
        _, end_ns = times_of(script)
        for partition in script.partitions:
            expected = records_of(partition)
            start_ns = partition.start_us * 1_000
            query = query_of(connection, dialect, partition.token, start_ns, end_ns)
            iterated = [r for message in query for r in message.records]
            assert [r for r in iterated if not isinstance(r, HeartbeatRecord)] == expected
            consumer = Collected(partition.token)
            decoder = BatchDecoder(deliver)
            query_of(connection, dialect, partition.token, start_ns, end_ns).run(decoder, consumer)
            decoder.flush()
            decoder.deliver_remaining()
            assert consumer.outlines == outlines(expected)
            by_column += consumer.by_column
            data = [r for r in expected if isinstance(r, DataChangeRecord)]
            assert delivered[partition.token] == len(data)
    assert sum(proxy.injected.values()) > 5
    assert by_column > sum(delivered.values()) / 2


@DIALECTS
def test_a_long_time_is_read_by_queries_that_spanner_accepts(dialect: Dialect) -> None:
    minute_us = 60_000_000
    script = script_of(5, dialect, step_us=7 * minute_us)
    start_ns, end_ns = times_of(script)
    assert end_ns - start_ns > 5 * QUERY_SPAN_MAX_NS
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        for partition in script.partitions:
            query = query_of(
                connection, dialect, partition.token, partition.start_us * 1_000, end_ns
            )
            records = [r for message in query for r in message.records]
            expected = records_of(partition)
            assert [r for r in records if not isinstance(r, HeartbeatRecord)] == expected
            assert not query.retried
            is_ended = isinstance(expected[-1], PartitionEndRecord) if expected else False
            assert is_ended or query.watermark_ns >= end_ns - QUERY_SPAN_MAX_NS
        with patch("slackwater.reader.query_window.QUERY_SPAN_MAX_NS", end_ns):
            token = script.alive(START_US)[0].token
            refused = query_of(connection, dialect, token, start_ns, end_ns)
            with pytest.raises(InvalidQueryError, match="30 minutes"):
                list(refused)


@DIALECTS
def test_a_query_without_an_end_shows_how_far_it_has_come(dialect: Dialect) -> None:
    """Its consumer has enough once a time lies beyond the epoch, if no record does."""
    script = script_of(5, dialect, step_us=7 * 60_000_000)
    ended = [(p, p.end_us) for p in script.partitions if p.end_us is not None]
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        for partition, end_us in ended:
            start_ns = partition.start_us * 1_000
            query = query_of(connection, dialect, partition.token, start_ns, None)
            records = [r for message in query for r in message.records]
            beats = [r.timestamp_ns for r in records if isinstance(r, HeartbeatRecord)]
            others = [r for r in records if not isinstance(r, HeartbeatRecord)]
            assert others == records_of(partition)
            assert beats == sorted(beats)
            span_ns = end_us * 1_000 - start_ns
            assert len(beats) >= span_ns // (2 * QUERY_SPAN_MAX_NS)
            assert isinstance(records[-1], PartitionEndRecord)
    assert ended


@DIALECTS
@pytest.mark.parametrize("seed", [5, 23, 26, 33, 38])
def test_all_records_are_there_when_each_partition_is_read_once(
    dialect: Dialect, seed: int
) -> None:
    """From the first query on, by what the records say only."""
    script = script_of(seed, dialect)
    start_ns, end_ns = times_of(script)
    cut = Cut(start_ns - 500, end_ns)
    read: dict[str, list[ChangeRecord]] = {}
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        alive = partitions_alive(connection, dialect, start_ns, heartbeat_ms=1_000, mode=MODE)
        waiting = [Partition(token, start_ns) for token in alive]
        assigned = {partition.key for partition in waiting}
        while waiting:
            partition = waiting.pop()
            consumer = Collected(partition.token)
            decoder = BatchDecoder(lambda batch, owners: None)
            query = query_of(
                connection, dialect, partition.token, partition.start_timestamp_ns, end_ns
            )
            query.run(decoder, consumer)
            decoder.flush()
            read[partition.token] = consumer.records
            for record in consumer.records:
                if isinstance(record, PartitionStartRecord):
                    new = [p for p in announced([record], "") if p.key not in assigned]
                    waiting += new
                    assigned.update(p.key for p in new)
    assert read == {p.token: records_of(p) for p in script.partitions}
    events = [
        r for records in read.values() for r in records if isinstance(r, PartitionEventRecord)
    ]
    assert count_moves(events, cut) == ()


@DIALECTS
def test_googles_client_reads_the_same_records(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shares no code with the reader: neither the query nor the decoding."""
    script = script_of(13, dialect)
    _, end_ns = times_of(script)
    is_postgresql = dialect is Dialect.POSTGRESQL
    function = "read_proto_bytes_" if is_postgresql else "READ_"
    arguments = "$1, $2, $3, $4, null" if is_postgresql else "@p1, @p2, @p3, @p4"
    schema = '"spanner".' if is_postgresql else ""
    kinds = (param_types.TIMESTAMP, param_types.TIMESTAMP, param_types.STRING, param_types.INT64)
    with SyntheticSpanner(script) as server:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", server.host)
        database = database_of(stream_at(server.host))
        for partition in script.partitions:
            start = format_rfc3339(partition.start_us * 1_000)
            values = (start, format_rfc3339(end_ns), partition.token, 300_000)
            with database.snapshot() as snapshot:
                rows = snapshot.execute_sql(
                    f"SELECT * FROM {schema}{function}{CHANGE_STREAM}({arguments})",
                    params={f"p{i}": v for i, v in enumerate(values, 1)},
                    param_types={f"p{i}": kind for i, kind in enumerate(kinds, 1)},
                )
                read = [_outline(_serialized(cell)) for (cell,) in rows]
            expected = outlines(records_of(partition))
            assert [outline for outline in read if outline is not None] == expected


def _serialized(cell: bytes) -> bytes:
    """The client decodes the base64 of a PROTO, and leaves that of BYTES as it is."""
    try:
        return base64.b64decode(cell, validate=True)
    except ValueError:
        return cell


def _outline(serialized: bytes) -> tuple[str, str] | None:
    """The kind and the record_sequence of a record; None for a heartbeat."""
    message = ChangeStreamRecord.pb(ChangeStreamRecord.deserialize(serialized))
    kind = message.WhichOneof("record")
    if kind == "heartbeat_record":
        return None
    return kind.title().replace("_", ""), getattr(message, kind).record_sequence


@DIALECTS
def test_the_mode_of_a_stream_is_found_out_from_the_database(dialect: Dialect) -> None:
    with SyntheticSpanner(script_of(0, dialect)) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        assert read_change_stream_info(connection).partition_mode is MODE


@pytest.mark.parametrize("seed", range(4))
def test_epochs_hold_every_record_once_through_faults(seed: int, tmp_path: Path) -> None:
    """The real planner and tasks; `python -m tests.faults.mutable_seeded` runs more seeds."""
    seen = mutable_seeded.run(seed, tmp_path)
    assert seen["epochs"] > 1


def placed(seed: int, dialect: Dialect, *, adds: bool = False) -> Script:
    return mutable_stream(
        seed, start_us=START_US, step_us=1_000, dialect=dialect, functions=PLACEMENTS, adds=adds
    ).script


@DIALECTS
def test_the_functions_of_placements_are_found_out_and_read_each_for_itself(
    dialect: Dialect,
) -> None:
    script = placed(3, dialect)
    start_ns, end_ns = times_of(script)
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        source = SpannerSource(connection, 300_000)
        assert tuple(source.read_functions) == PLACEMENTS
        alive = source.partitions_alive(start_ns)
        assert sorted(p.label for p in alive) == sorted(
            f"{p.function}:{p.token}" for f in PLACEMENTS for p in script.alive(START_US, f)
        )
        assert len({p.token for p in alive}) < len(alive), "placements share tokens"
        for partition in script.partitions:
            query = source.query(
                partition.token, partition.start_us * 1_000, end_ns, partition.function
            )
            read = [r for message in query for r in message.records]
            assert [r for r in read if not isinstance(r, HeartbeatRecord)] == records_of(partition)


def test_a_token_of_another_placement_is_refused_and_the_epoch_planned_again() -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    script = placed(3, dialect)
    counts = Counter(p.token for p in script.partitions)
    only = next(p for p in script.partitions if counts[p.token] == 1)
    other = next(f for f in PLACEMENTS if f != only.function)
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        query = SpannerSource(connection, 300_000).query(
            only.token, only.start_us * 1_000, only.start_us * 1_000, other
        )
        with pytest.raises(UnavailableError, match="does not belong to the placement by") as error:
            list(query)
        assert not error.value.user_error


def test_a_function_that_began_later_is_read_from_its_beginning() -> None:
    script = placed(2, Dialect.POSTGRESQL, adds=True)
    begin_ns = script.begins_us["europe"] * 1_000
    assert begin_ns > START_US * 1_000
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        source = SpannerSource(connection, 300_000)
        alive = source.partitions_alive(START_US * 1_000)
        starts = {p.label.partition(":")[0]: p.start_timestamp_ns for p in alive}
        assert starts == dict.fromkeys(PLACEMENTS, START_US * 1_000) | {"europe": begin_ns}
    # Where no function answers, the records are gone: nothing says that there were none.
    gone = replace(script, retention_start_us=begin_ns // 1_000 + 1)
    with SyntheticSpanner(gone) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        with pytest.raises(StartTooOldError):
            SpannerSource(connection, 300_000).partitions_alive(START_US * 1_000)


def test_functions_that_change_while_an_epoch_is_read_are_noticed() -> None:
    script = placed(5, Dialect.GOOGLE_STANDARD_SQL)
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        SpannerSource(connection, 1_000, functions=PLACEMENTS).require_same_functions()
        planned = SpannerSource(connection, 1_000, functions=PLACEMENTS[:2])
        with pytest.raises(StreamAlteredError, match=r"asia and default when .* europe") as error:
            planned.require_same_functions()
        assert not error.value.user_error


def test_a_function_that_is_gone_leads_to_another_plan() -> None:
    script = replace(placed(3, Dialect.GOOGLE_STANDARD_SQL), begins_us={"default": 0})
    with SyntheticSpanner(script) as server, ExitStack() as stack:
        connection = Connection(stream_at(server.host))
        stack.callback(connection.close)
        query = SpannerSource(connection, 300_000).query("p0", START_US * 1_000, None, "asia")
        with pytest.raises(StreamAlteredError, match="placement asia is gone"):
            list(query)
