"""The synthetic server answers as the emulator does, and the plain client understands it."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from slackwater.demo.load import Load
from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.change_stream_info import partitions_alive, read_change_stream_info
from slackwater.reader.database.snapshot_read import select, snapshot_part
from slackwater.reader.database.watched_tables import Table, watched_tables
from slackwater.reader.errors import ReaderError, UnavailableError
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator_database import database_of
from slackwater.testing.plain_client import read_truth
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop
from tests.synthetic.rows import ListedRows, PatternRows
from tests.synthetic.script import Script, ScriptedPartition, lineage
from tests.synthetic.server import CHANGE_STREAM, SyntheticSpanner
from tests.synthetic.table import COLUMNS, FIRST_ID, NAME, SyntheticTable

SECOND_NS = 10**9
NOW_US = 1_769_850_000_000_000
Answer = tuple[list[ChangeRecord], str]


def synthetic(server: SyntheticSpanner) -> ChangeStream:
    return ChangeStream(
        "test-project", "test", "db", CHANGE_STREAM, endpoint=plaintext(server.host)
    )


def answer(
    connection: Connection, dialect: Dialect, token: str, start_ns: int, end_ns: int
) -> Answer:
    """The records but heartbeats, and how the query ended."""
    query = PartitionQuery(
        connection,
        dialect,
        partition_token=token,
        start_timestamp_ns=start_ns,
        end_timestamp_ns=end_ns,
        heartbeat_ms=1_000,
    )
    records: list[ChangeRecord] = []
    try:
        for message in query:
            records += [r for r in message.records if not isinstance(r, HeartbeatRecord)]
    except ReaderError as error:
        return records, type(error).__name__
    return records, "OK"


def seen_of(connection: Connection, dialect: Dialect, start_ns: int, end_ns: int) -> Script:
    """Return the content of a change stream between two times as a script."""
    waiting = [
        ScriptedPartition(token, start_ns // 1_000)
        for token in partitions_alive(connection, dialect, start_ns, heartbeat_ms=1_000)
    ]
    by_token: dict[str, ScriptedPartition] = {}
    while waiting:
        partition = waiting.pop()
        start_us = partition.start_us
        records, _ = answer(connection, dialect, partition.token, start_us * 1_000, end_ns)
        data = tuple(r for r in records if isinstance(r, DataChangeRecord))
        ends = [r for r in records if isinstance(r, ChildPartitionsRecord)]
        end_us = ends[0].start_timestamp_ns // 1_000 if ends else None
        rows = ListedRows(data, dialect)
        by_token[partition.token] = ScriptedPartition(
            partition.token, start_us, end_us, partition.parents, rows
        )
        for child in (child for record in ends for child in record.child_partitions):
            if child.token not in by_token:
                parents = tuple(sorted(child.parent_partition_tokens))
                waiting.append(ScriptedPartition(child.token, end_us or 0, None, parents))
    return Script(dialect, tuple(by_token.values()), rows_per_message=3)


def same(left: Answer, right: Answer) -> bool:
    """Child partitions may be spread over their records otherwise."""

    def plain(records: list[ChangeRecord]) -> Any:
        ends = [r for r in records if isinstance(r, ChildPartitionsRecord)]
        children = {(r.start_timestamp_ns, child) for r in ends for child in r.child_partitions}
        return [r for r in records if isinstance(r, DataChangeRecord)], children

    return plain(left[0]) == plain(right[0]) and left[1] == right[1]


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_the_same_queries_get_the_same_answers(dialect: Dialect, new_database: NewDatabase) -> None:
    stream = new_database(dialect)
    real = Connection(stream)
    start_ns = real.strong_read_timestamp_ns()
    Load(stream, dialect, seed=2).run(transactions_per_second=40, seconds=5)
    end_ns = real.strong_read_timestamp_ns()
    script = seen_of(real, dialect, start_ns, end_ns)
    assert sum(len(p.rows) for p in script.partitions) > 100
    assert sum(p.end_us is not None for p in script.partitions) >= 2
    with SyntheticSpanner(script) as server:
        made = Connection(synthetic(server))
        assert read_change_stream_info(made).dialect is dialect
        for at_ns in range(start_ns, end_ns, SECOND_NS):
            assert partitions_alive(made, dialect, at_ns, heartbeat_ms=1_000) == partitions_alive(
                real, dialect, at_ns, heartbeat_ms=1_000
            )
        asked = 0
        for partition in script.partitions:
            first_ns = partition.start_us * 1_000
            last_ns = end_ns if partition.end_us is None else partition.end_us * 1_000
            middle_ns = (first_ns + last_ns) // 2_000 * 1_000
            for cut in (
                (first_ns, end_ns),
                (middle_ns + 500, end_ns),
                (first_ns, middle_ns + 500),
                (last_ns, end_ns),
                (min(last_ns + 1_000, end_ns), end_ns),
                (first_ns - 1_000, end_ns),
            ):
                if cut[0] < start_ns:
                    continue
                asked += 1
                ours = answer(made, dialect, partition.token, *cut)
                theirs = answer(real, dialect, partition.token, *cut)
                assert same(ours, theirs), (partition.token, cut, ours, theirs)
        assert asked > 20
        made.close()
    real.close()


def parts_of(connection: Connection) -> tuple[Table, list[dict[str, Any]]]:
    """A table, and the rows of a partitioned read of it."""
    dialect, at_ns = Dialect.GOOGLE_STANDARD_SQL, connection.strong_read_timestamp_ns()
    [table] = watched_tables(connection, dialect, at_ns)
    read, tokens = connection.partitioned_read(select(dialect, table), at_ns)
    rows: list[dict[str, Any]] = []
    for token in tokens:
        for batch in snapshot_part(connection, dialect, table, at_ns, read=read, token=token):
            rows += batch.select(["table_name", "column_types", "mods"]).to_pylist()
    return table, sorted(rows, key=lambda row: str(row["mods"]))


def test_a_table_is_read_in_parts_as_on_the_emulator(new_database: NewDatabase) -> None:
    columns = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
    ddl = (
        f"CREATE TABLE {NAME} ({columns}) PRIMARY KEY (Id)",
        f"CREATE CHANGE STREAM {CHANGE_STREAM} FOR ALL",
    )
    stream = new_database(Dialect.GOOGLE_STANDARD_SQL, ddl, CHANGE_STREAM)
    table = SyntheticTable(450, 3)
    values = [
        [FIRST_ID + number, f"customer {FIRST_ID + number}", number / 7, "x" * 400]
        for number in range(table.rows)
    ]
    with database_of(stream).batch() as batch:
        batch.insert(NAME, list(COLUMNS), values)
    script = Script(Dialect.GOOGLE_STANDARD_SQL, (ScriptedPartition("p", 0),), table=table)
    with (
        SyntheticSpanner(script) as server,
        closing(Connection(stream)) as real,
        closing(Connection(synthetic(server))) as made,
    ):
        assert parts_of(made) == parts_of(real)


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_the_plain_client_reads_patterns_through_splits_merges_and_moves(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    partitions = lineage(3, NOW_US, [NOW_US + 10_000, NOW_US + 20_000], seed=1)
    made = tuple(
        ScriptedPartition(
            p.token,
            p.start_us,
            p.end_us,
            p.parents,
            PatternRows(i, p.start_us, 1_000, 9, per_transaction=2, dialect=dialect),
        )
        for i, p in enumerate(partitions)
    )
    with SyntheticSpanner(Script(dialect, made)) as server:
        stream = synthetic(server)
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", server.host)
        truth = read_truth(
            project=stream.project,
            instance=stream.instance,
            database=stream.database,
            change_stream=stream.change_stream,
            is_postgresql=dialect is Dialect.POSTGRESQL,
            start=format_rfc3339(NOW_US * 1_000),
            end=format_rfc3339((NOW_US + 30_000) * 1_000),
        )
    assert len({record[:3] for record in truth.records}) == len(truth.records) == 18 * len(made)
    assert {p.token for p in truth.partitions} == {p.token for p in made}
    assert {p.token: tuple(sorted(p.parents)) for p in truth.partitions} == {
        p.token: p.parents for p in made
    }


def test_partitions_that_carried_most_are_spread_over_the_tasks_of_the_next_epoch(
    tmp_path: Path,
) -> None:
    partitions = tuple(
        ScriptedPartition(
            f"p{i}", NOW_US - 1_000_000, rows=PatternRows(i, NOW_US, 1_000, 900 if i % 2 else 9)
        )
        for i in range(4)
    )
    with SyntheticSpanner(Script(Dialect.GOOGLE_STANDARD_SQL, partitions)) as server:
        url = f"sqlite:///{tmp_path / 'state.db'}"
        loop = EpochLoop(synthetic(server), url, start_ns=NOW_US * 1_000, options={"tasks": "2"})
        assert loop.epoch(end_ns=NOW_US * 1_000 + 400_000_500).num_rows == 2 * 401 + 2 * 9
        assert loop.watermark_ns is not None
        plan = loop.planner.plan(loop.watermark_ns, loop.watermark_ns + SECOND_NS)
        loop.close()
    tokens = [sorted(root.token for root in task.roots) for task in plan]
    assert sorted(tokens) == [["p0", "p1"], ["p2", "p3"]] or sorted(tokens) == [
        ["p0", "p3"],
        ["p1", "p2"],
    ]


@pytest.mark.parametrize("dialect", Dialect)
def test_an_answer_without_a_partition_is_tried_again(dialect: Dialect) -> None:
    """An epoch over no partition would pass with nothing read."""
    later = ScriptedPartition("p", NOW_US + 1)
    with SyntheticSpanner(Script(dialect, (later,))) as server:
        connection = Connection(synthetic(server))
        with pytest.raises(UnavailableError, match="names no partition of projects/test-project"):
            partitions_alive(connection, dialect, NOW_US * 1_000, heartbeat_ms=1_000)
        after_ns = (NOW_US + 1) * 1_000
        assert partitions_alive(connection, dialect, after_ns, heartbeat_ms=1_000) == ["p"]
        connection.close()
