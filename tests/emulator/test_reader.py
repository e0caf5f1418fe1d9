"""Partition queries against the real emulator: types, capture types, mods, sizes, endings."""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from google.cloud.spanner_v1 import JsonObject, KeySet

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.change_stream_info import partitions_alive, read_change_stream_info
from slackwater.reader.errors import (
    InvalidQueryError,
    NotFoundError,
    ReaderError,
    StartOutsidePartitionError,
    StartTooOldError,
)
from slackwater.reader.query.partition_query import PartitionQuery
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.reader.transport.connection import Connection
from slackwater.testing.emulator_database import database_of
from tests.support.emulators import CHURN_SECONDS, NewDatabase

GOOGLESQL_TYPES = (
    "CREATE TABLE Types (Id INT64 NOT NULL, B BOOL, F FLOAT64, F32 FLOAT32, N NUMERIC,"
    " S STRING(MAX), Y BYTES(MAX), D DATE, T TIMESTAMP, J JSON, AI ARRAY<INT64>,"
    " AB ARRAY<BOOL>, AF ARRAY<FLOAT64>, AN ARRAY<NUMERIC>, AS1 ARRAY<STRING(MAX)>,"
    " AY ARRAY<BYTES(MAX)>, AD ARRAY<DATE>, ATS ARRAY<TIMESTAMP>, AJ ARRAY<JSON>)"
    " PRIMARY KEY (Id)",
)
POSTGRESQL_TYPES = (
    'CREATE TABLE "Types" ("Id" bigint PRIMARY KEY, "B" bool, "F" float8, "F32" float4,'
    ' "N" numeric, "S" varchar, "Y" bytea, "D" date, "T" timestamptz, "J" jsonb,'
    ' "AI" bigint[], "AB" bool[], "AF" float8[], "AN" numeric[], "AS1" varchar[],'
    ' "AY" bytea[], "AD" date[], "ATS" timestamptz[], "AJ" jsonb[])',
)
CAPTURE_TYPES = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW", "NEW_ROW_AND_OLD_VALUES")
# The emulator drops fractions of a second in the values of change records.
STAMP = "2026-01-31T09:00:00Z"


def type_ddl(dialect: Dialect, capture: str = CAPTURE_TYPES[0]) -> tuple[str, ...]:
    if dialect is Dialect.POSTGRESQL:
        stream = f'CREATE CHANGE STREAM "S" FOR "Types" WITH (value_capture_type = \'{capture}\')'
        return (*POSTGRESQL_TYPES, stream)
    stream = f"CREATE CHANGE STREAM S FOR Types OPTIONS (value_capture_type = '{capture}')"
    return (*GOOGLESQL_TYPES, stream)


def follow(
    connection: Connection, dialect: Dialect, start_ns: int, end_ns: int
) -> list[ChangeRecord]:
    """Read every record between two times, children after their parents."""
    records: list[ChangeRecord] = []
    waiting = [
        (token, start_ns)
        for token in partitions_alive(connection, dialect, start_ns, heartbeat_ms=1_000)
    ]
    seen = {token for token, _ in waiting}
    while waiting:
        token, begin_ns = waiting.pop(0)
        for record in read(connection, dialect, token, begin_ns, end_ns):
            records.append(record)
            if isinstance(record, ChildPartitionsRecord):
                new = [c.token for c in record.child_partitions if c.token not in seen]
                seen.update(new)
                waiting += [(child, record.start_timestamp_ns) for child in new]
    return records


def read(
    connection: Connection, dialect: Dialect, token: str | None, start_ns: int, end_ns: int
) -> list[ChangeRecord]:
    query = PartitionQuery(
        connection,
        dialect,
        partition_token=token,
        start_timestamp_ns=start_ns,
        end_timestamp_ns=end_ns,
        heartbeat_ms=1_000,
    )
    return [record for message in query for record in message.records]


def data(records: Sequence[ChangeRecord]) -> list[DataChangeRecord]:
    return [record for record in records if isinstance(record, DataChangeRecord)]


def values(text: str | None) -> dict[str, Any]:
    parsed = json.loads(text or "null")
    assert isinstance(parsed, dict)
    return parsed


@pytest.fixture(params=list(Dialect), ids=str)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return Dialect(request.param)


@pytest.fixture
def connect() -> Iterator[Callable[[ChangeStream], Connection]]:
    opened: list[Connection] = []

    def open_one(stream: ChangeStream) -> Connection:
        opened.append(Connection(stream))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


FULL_ROW = {
    "B": True,
    "F": 1.5,
    "F32": 0.25,
    "N": "12345678901234567890.123456789",
    "S": 'naïve "quoted" \\ \n',
    "Y": "AP8=",
    "D": "2026-01-31",
    "T": STAMP,
    "J": '{"a":[1,null,"x"],"b":1.5}',
    "AI": ["1", "9007199254740993"],
    "AB": [True, False],
    "AF": [1.5, -0.25],
    "AN": ["1.5", "2"],
    "AS1": ["a", ""],
    "AY": ["AP8=", ""],
    "AD": ["2026-01-31"],
    "ATS": [STAMP],
}


def full_row(dialect: Dialect) -> tuple[tuple[str, ...], list[Any]]:
    row = dict(FULL_ROW)
    row["J"] = (
        JsonObject(json.loads(str(FULL_ROW["J"])))
        if dialect is not Dialect.POSTGRESQL
        else FULL_ROW["J"]
    )
    row["AI"] = [1, 9007199254740993]
    row["Y"] = b"AP8="
    row["AY"] = [b"AP8=", b""]
    return ("Id", *row), [1, *row.values()]


def test_every_column_type_and_null_of_a_dialect_arrives(
    dialect: Dialect, new_database: NewDatabase, connect: Callable[[ChangeStream], Connection]
) -> None:
    stream = new_database(dialect, type_ddl(dialect), "S")
    connection = connect(stream)
    start_ns = connection.strong_read_timestamp_ns()
    columns, row = full_row(dialect)
    with database_of(stream, dialect).batch() as batch:
        batch.insert("Types", columns, [row])
        batch.insert("Types", ("Id",), [[2]])
    records = data(follow(connection, dialect, start_ns, connection.strong_read_timestamp_ns()))
    mods = {values(mod.keys)["Id"]: mod for record in records for mod in record.mods}
    full, empty = values(mods["1"].new_values), values(mods["2"].new_values)
    assert {name: full[name] for name in FULL_ROW if name not in ("J", "N")} == {
        name: value for name, value in FULL_ROW.items() if name not in ("J", "N")
    }
    assert json.loads(full["J"]) == json.loads(str(FULL_ROW["J"]))
    assert float(full["N"]) == float(str(FULL_ROW["N"]))
    assert set(empty.values()) == {None}
    types = {c.name: json.loads(c.type)["code"] for c in records[0].column_types}
    assert types["Id"] == "INT64"
    assert types["AS1"] == "ARRAY"
    assert [c.name for c in records[0].column_types if c.is_primary_key] == ["Id"]
    assert (mods["1"].old_values or "{}") == "{}"


@pytest.mark.parametrize("capture", CAPTURE_TYPES)
def test_every_value_capture_type_and_mod_type_arrives(
    capture: str,
    dialect: Dialect,
    new_database: NewDatabase,
    connect: Callable[[ChangeStream], Connection],
) -> None:
    stream = new_database(dialect, type_ddl(dialect, capture), "S")
    connection = connect(stream)
    start_ns = connection.strong_read_timestamp_ns()
    database = database_of(stream, dialect)
    with database.batch() as batch:
        batch.insert("Types", ("Id", "S", "B"), [[1, "old", True]])
    with database.batch() as batch:
        batch.update("Types", ("Id", "S"), [[1, "new"]])
    with database.batch() as batch:
        batch.delete("Types", KeySet(keys=[[1]]))
    end_ns = connection.strong_read_timestamp_ns()
    records = data(follow(connection, dialect, start_ns, end_ns))
    assert [r.mod_type for r in records] == ["INSERT", "UPDATE", "DELETE"]
    assert {r.value_capture_type for r in records} == {capture}
    update, delete = records[1].mods[0], records[2].mods[0]
    assert values(update.keys) == {"Id": "1"}
    assert values(update.new_values)["S"] == "new"
    assert ("B" in values(update.new_values)) == capture.startswith("NEW_ROW")
    old = values(update.old_values or "{}")
    assert old.get("S") == ("old" if "OLD" in capture else None)
    assert values(delete.keys) == {"Id": "1"}


def test_a_value_of_five_megabytes_arrives_whole(
    dialect: Dialect, new_database: NewDatabase, connect: Callable[[ChangeStream], Connection]
) -> None:
    stream = new_database(dialect, type_ddl(dialect), "S")
    connection = connect(stream)
    start_ns = connection.strong_read_timestamp_ns()
    text = "aé" * 1_300_000
    with database_of(stream, dialect).batch() as batch:
        batch.insert("Types", ("Id", "S"), [[1, text]])
    (record,) = data(follow(connection, dialect, start_ns, connection.strong_read_timestamp_ns()))
    # Four bytes of every pair: 'a' has one, 'é' has two; with the JSON around it, 3.9 MB and more.
    assert values(record.mods[0].new_values)["S"] == text


def test_the_dialect_is_read_from_the_database(
    dialect: Dialect, new_database: NewDatabase, connect: Callable[[ChangeStream], Connection]
) -> None:
    assert read_change_stream_info(connect(new_database(dialect))).dialect is dialect


def test_a_partition_ends_with_its_child_partitions_and_not_a_moment_later(
    dialect: Dialect, new_database: NewDatabase, connect: Callable[[ChangeStream], Connection]
) -> None:
    connection = connect(new_database(dialect))
    start_ns = connection.strong_read_timestamp_ns()
    token = partitions_alive(connection, dialect, start_ns, heartbeat_ms=1_000)[0]
    time.sleep(2 * CHURN_SECONDS + 1)
    end_ns = connection.strong_read_timestamp_ns()
    records = read(connection, dialect, token, start_ns, end_ns)
    assert isinstance(records[-1], ChildPartitionsRecord)
    ended_ns = records[-1].start_timestamp_ns
    assert start_ns < ended_ns < end_ns
    again = read(connection, dialect, token, ended_ns, end_ns)
    assert again
    assert all(isinstance(r, ChildPartitionsRecord) for r in again)
    with pytest.raises(StartOutsidePartitionError):
        read(connection, dialect, token, ended_ns + 1_000, end_ns)


def test_a_query_without_data_shows_its_progress_by_heartbeats(
    dialect: Dialect, new_database: NewDatabase, connect: Callable[[ChangeStream], Connection]
) -> None:
    connection = connect(new_database(dialect))
    start_ns = connection.strong_read_timestamp_ns()
    end_ns = start_ns + 1_000_000
    token = partitions_alive(connection, dialect, start_ns, heartbeat_ms=1_000)[0]
    records = read(connection, dialect, token, start_ns, end_ns)
    assert records
    assert isinstance(records[-1], HeartbeatRecord)
    assert records[-1].timestamp_ns <= end_ns


def test_each_refusal_of_spanner_has_its_own_error(
    new_database: NewDatabase, connect: Callable[[ChangeStream], Connection]
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect)
    connection = connect(stream)
    now_ns = connection.strong_read_timestamp_ns()
    with pytest.raises(StartTooOldError, match=r"at 20\d\d-.* or later"):
        partitions_alive(connection, dialect, 0, heartbeat_ms=1_000)
    with pytest.raises(InvalidQueryError, match="partition_token"):
        read(connection, dialect, "nonsense", now_ns, now_ns)

    def missing(**names: str) -> type[ReaderError]:
        fields: dict[str, Any] = {
            "project": stream.project,
            "instance": stream.instance,
            "database": stream.database,
            "change_stream": stream.change_stream,
        } | names
        with pytest.raises(ReaderError) as caught:
            read_change_stream_info(connect(ChangeStream(**fields, endpoint=stream.endpoint)))
        assert next(iter(names.values())) in str(caught.value)
        return caught.type

    for name in ("instance", "database", "change_stream"):
        assert missing(**{name: "not-there" if name != "change_stream" else "NotThere"}) is (
            NotFoundError
        )
