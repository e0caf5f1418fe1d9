"""A snapshot of a table has each row once, however its messages are cut and its reads break."""

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pyarrow as pa
import pytest
from google.cloud.spanner_v1.types import ExecuteSqlRequest, TypeCode
from google.protobuf.struct_pb2 import Value
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.snapshot_read import (
    plain_values,
    row_record,
    snapshot,
    snapshot_part,
)
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.decode.arrow import data_columns
from slackwater.reader.decode.result_rows import ResultRows
from slackwater.reader.decode.snapshot_columns import plain_column, row_columns
from slackwater.reader.errors import PermissionDeniedError, UnavailableError
from slackwater.reader.records import ColumnType, Mod
from slackwater.reader.schema import DATA_SCHEMA
from slackwater.reader.transport.connection import Connection, PartitionedRead
from tests.faults.breaking_spanner import BreakingSpanner
from tests.support.spanner_messages import PartialResultSetPb, value

TABLE = Table("sales.Orders", {"Note": "STRING(MAX)", "Id": "INT64"}, ("Id",))
ROWS = 40
UNAVAILABLE = (grpc.StatusCode.UNAVAILABLE, "try again")


def cut(values: Sequence[Value], sizes: Sequence[int]) -> list[bytes]:
    """Values in messages of so many; a string at a message's end is cut in two."""
    parts = [PartialResultSetPb()]
    parts[0].metadata.row_type.fields.add(name="Note").type_.code = TypeCode.STRING
    parts[0].metadata.row_type.fields.add(name="Id").type_.code = TypeCode.INT64
    for number, one in enumerate(values):
        parts[-1].values.append(one)
        if number % 7 in sizes:
            text = one.string_value
            if one.WhichOneof("kind") == "string_value" and len(text) > 1:
                parts[-1].values[-1].string_value = text[:1]
                parts[-1].chunked_value = True
                parts.append(PartialResultSetPb(values=[Value(string_value=text[1:])]))
            else:
                parts.append(PartialResultSetPb())
    return [part.SerializeToString() for part in parts]


def values(rows: int = ROWS) -> list[Value]:
    return [
        v for i in range(rows) for v in (value(None if i % 3 == 0 else f"né{i}"), value(str(i)))
    ]


Breaks = Sequence[tuple[int, grpc.StatusCode, str] | None]


class BreakingTable(BreakingSpanner):
    """Args: messages of the table's rows; breaks as of a BreakingSpanner."""

    def __init__(self, messages: Sequence[bytes], breaks: Breaks) -> None:
        super().__init__([], breaks)
        self._messages = messages

    def execute(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.asked.append(ExecuteSqlRequest.pb(ExecuteSqlRequest.deserialize(request)))
        broken = self._breaks.pop(0) if self._breaks else None
        for number, message in enumerate(self._messages):
            if broken is not None and number == broken[0]:
                context.abort(broken[1], broken[2])
            yield message


def read(spanner: BreakingSpanner) -> list[tuple[str, Mod]]:
    host = f"127.0.0.1:{spanner.port}"
    connection = Connection(
        ChangeStream("project", "instance", "database", "s", endpoint=plaintext(host))
    )
    try:
        dialect = Dialect.GOOGLE_STANDARD_SQL
        rows = list(snapshot(connection, dialect, TABLE, 1_769_850_000_000_001_000))
    finally:
        connection.close()
    assert {r.column_types for r in rows} <= {rows[0].column_types}
    return [(record.record_sequence, record.mods[0]) for record in rows]


EXPECTED = [
    (
        f"{i:08d}",
        Mod(f'{{"Id":"{i}"}}', '{"Note":null}' if i % 3 == 0 else f'{{"Note":"né{i}"}}', "{}"),
    )
    for i in range(ROWS)
]


def test_reads_that_break_anywhere_give_each_row_once_in_order() -> None:
    messages = cut(values(), (0, 3, 5))
    breaks = [(count, *UNAVAILABLE) for count in (0, 1, 7, 7, len(messages) - 1)]
    with BreakingTable(messages, breaks) as spanner:
        assert read(spanner) == EXPECTED
        assert len(spanner.asked) == len(breaks) + 1
        asked = spanner.asked[-1]
    assert asked.sql == "SELECT `Note`, `Id` FROM `sales`.`Orders` ORDER BY `Id`"
    read_only = asked.transaction.single_use.read_only
    assert read_only.read_timestamp.ToNanoseconds() == 1_769_850_000_000_001_000


def test_an_error_that_a_retry_cannot_fix_is_raised() -> None:
    denied = [(1, grpc.StatusCode.PERMISSION_DENIED, "no")]
    with BreakingTable(cut(values(), (3,)), denied) as spanner:
        with pytest.raises(PermissionDeniedError):
            read(spanner)
        assert len(spanner.asked) == 1
    with (
        BreakingTable(cut(values(), (3,)), [(0, *UNAVAILABLE)] * 9) as spanner,
        pytest.raises(UnavailableError),
    ):
        read(spanner)


@given(st.sets(st.integers(0, 6)), st.integers(0, 20))
@settings(deadline=None)
def test_rows_are_whole_however_their_messages_are_cut(sizes: set[int], rows: int) -> None:
    expected = values(rows)
    decoder = ResultRows(2)
    decoded = [row for message in cut(values(rows), sorted(sizes)) for row in decoder.feed(message)]
    assert [v for row in decoded for v in row] == expected
    assert all(len(row) == 2 for row in decoded)


def read_part(spanner: BreakingSpanner) -> tuple[pa.Table, pa.Table]:
    """Return the rows of a part, and those of the records of a whole snapshot."""
    host = f"127.0.0.1:{spanner.port}"
    connection = Connection(
        ChangeStream("project", "instance", "database", "s", endpoint=plaintext(host))
    )
    dialect, at_ns = Dialect.GOOGLE_STANDARD_SQL, 1_769_850_000_000_001_000
    try:
        part = snapshot_part(
            connection, dialect, TABLE, at_ns, read=PartitionedRead("session", b"1"), token=b"2"
        )
        rows = pa.Table.from_batches(part, DATA_SCHEMA)
        records = list(snapshot(connection, dialect, TABLE, at_ns))
    finally:
        connection.close()
    return rows, pa.Table.from_batches([data_columns(records)])


# Two batches and a bit, in messages that end within rows and within values.
@pytest.mark.parametrize("count", [0, 1, 2_345])
def test_a_part_has_by_column_what_the_records_of_a_snapshot_have(count: int) -> None:
    with BreakingTable(cut(values(count), (0, 3, 5)), []) as spanner:
        rows, records = read_part(spanner)
    assert rows.num_rows == count
    assert rows.to_pylist() == records.to_pylist()


cells = st.one_of(
    st.none(),
    st.booleans(),
    # Spanner writes the others as texts.
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(),
    st.lists(st.one_of(st.none(), st.text(), st.booleans()), max_size=3),
)


def cell(given_value: Any) -> Value:
    return Value(number_value=given_value) if type(given_value) is float else value(given_value)


@given(data=st.data(), columns=st.integers(1, 3), keys=st.integers(0, 3))
@settings(deadline=None)
def test_columns_of_rows_hold_what_their_records_hold(
    data: st.DataObject, columns: int, keys: int
) -> None:
    names = ["B", "A", "sales"][:columns]
    table = Table("sales.T", dict.fromkeys(names, "JSON"), tuple(reversed(names[:keys])))
    given_rows = data.draw(
        st.lists(st.lists(cells, min_size=columns, max_size=columns), min_size=1, max_size=4)
    )
    types = tuple(ColumnType(name, "{}", name in table.key, 1) for name in names)
    by_column = {
        name: plain_column([cell(row[place]) for row in given_rows])
        for place, name in enumerate(names)
    }
    columns_made = row_columns(
        by_column, table.key, types, table=table.name, at_ns=5_000, first=99_999_999
    )
    rows = (dict(zip(names, plain_values(map(cell, row)), strict=True)) for row in given_rows)
    records = [
        row_record(row, table, types, 5_000, number) for number, row in enumerate(rows, 99_999_999)
    ]
    assert columns_made.to_pylist() == data_columns(records).to_pylist()
