"""Typed changes: what each JSON value becomes, and what a change says and does not say."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.reader.errors import ColumnTypeError
from slackwater.reader.schema import SCHEMA
from slackwater.reader.typed_schema import (
    METADATA,
    is_typed,
    typed_schema,
)
from slackwater.scheduler.spark.typed_table import rows_of_table
from slackwater.typed_changes import (
    AFTER,
    BAD_COLUMNS,
    BEFORE,
    KEY,
    ColumnValueError,
    RecordColumns,
    in_pieces,
    typed_changes,
)
from slackwater.typed_values import arrow_type
from tests.support.epoch_rows import Mods, Record, inserts, record
from tests.support.typed_values import VALUES

TABLE = "sales.Orders"
COLUMNS = {"Id": "INT64", "Name": "STRING(MAX)"}
ORDERS = typed_schema(COLUMNS, ["Id"])
NAMES = st.dictionaries(st.sampled_from(["Name", "Other"]), st.none() | st.text(), max_size=2)


def batch(*records: Record) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([_plain(values) for values in records], schema=SCHEMA)


def _plain(values: Record) -> dict[str, Any]:
    plain = dict(zip(SCHEMA.names, values, strict=True))
    as_dicts = {name: SCHEMA.field(name).type.value_type for name in ("column_types", "mods")}
    for name, kind in as_dicts.items():
        fields = [field.name for field in kind]
        plain[name] = [dict(zip(fields, item, strict=True)) for item in plain[name]]
    return plain


def changes(
    mod_type: str, mods: Mods, schema: pa.Schema = ORDERS, columns: Mapping[str, str] = COLUMNS
) -> list[dict[str, Any]]:
    rows = typed_changes(batch(record(mod_type, mods, columns, at=1)), TABLE, schema)
    made: list[dict[str, Any]] = rows.to_pylist()
    return made


def only_value(spanner_type: str, value: Any) -> Any:
    columns = {"Id": "INT64", "Value": spanner_type}
    schema = typed_schema(columns, ["Id"])
    [change] = changes("INSERT", [({"Id": "1"}, {"Value": value}, {})], schema, columns)
    return change[AFTER]["Value"]


@pytest.mark.parametrize(("spanner_type", "value", "expected"), VALUES, ids=str)
def test_each_value_is_of_its_columns_type(spanner_type: str, value: Any, expected: Any) -> None:
    assert only_value(spanner_type, value) == expected
    assert only_value(spanner_type, None) is None


@pytest.mark.parametrize(
    ("spanner_type", "value"),
    [
        ("INT64", "1.5"),
        ("INT64", True),
        ("INT64", "9223372036854775808"),
        ("FLOAT64", "abc"),
        ("BOOL", "true"),
        ("BYTES", "!"),
        ("DATE", "2026-13-01"),
        ("NUMERIC", "1.0000000001"),
        ("NUMERIC", "x"),
        ("TIMESTAMP", "yesterday"),
        ("ARRAY<INT64>", "1"),
    ],
)
def test_a_value_of_another_type_is_named_and_not_made_null(spanner_type: str, value: Any) -> None:
    columns = {"Id": "INT64", "Value": spanner_type}
    schema = typed_schema(columns, ["Id"])
    mods: Mods = [({"Id": "1"}, {"Value": said}, {}) for said in (None, value, None)]
    message = f"column sales.Orders.Value: {value!r} is not of type"
    with pytest.raises(ColumnValueError, match=re.escape(message)):
        changes("INSERT", mods, schema, columns)
    records = batch(record("INSERT", mods, columns, at=1))
    with pytest.raises(ColumnTypeError, match=re.escape(message)):
        list(rows_of_table(TABLE, from_arrow_schema(schema))(iter([records])))
    checked = typed_changes(records, TABLE, schema, is_checked=True)
    assert checked.column(BAD_COLUMNS.name).to_pylist() == [[], ["Value"], []]
    assert [row[AFTER]["Value"] for row in checked.to_pylist()] == [None] * 3


def test_columns_of_records_may_be_called_otherwise_and_be_no_key_any_more() -> None:
    schema = typed_schema({"Id": "INT64", "Code": "STRING", "Name": "STRING"}, ["Id", "Code"])
    then = {"Code": "STRING", "ID": "INT64", "Name": "STRING"}
    values = {"ID": "7", "Name": "Ada"}
    records = batch(record("INSERT", [({"Code": "x"}, values, {})], then, at=1))
    columns = RecordColumns({"Code"}, {"Id": "ID"})
    [change] = typed_changes(records, TABLE, schema, columns).to_pylist()
    assert change[KEY] == {"Id": None, "Code": "x"}
    assert change[AFTER] == {"Id": 7, "Code": "x", "Name": "Ada"}
    assert change["given"]["after"] == ["ID", "Name"]


def test_what_a_change_says_and_does_not_say() -> None:
    everything = {"Id": "INT64", "Name": "STRING(MAX)", "Fee": "NUMERIC"}
    schema = typed_schema(everything, ["Id"])
    mods: Mods = [({"Id": "1"}, {"Name": None}, {"Name": "Ada"}), ({"Id": "2"}, {}, {})]
    updates = changes("UPDATE", mods, schema, everything)
    assert [change["mod_number"] for change in updates] == [0, 1]
    assert [change[KEY] for change in updates] == [{"Id": 1}, {"Id": 2}]
    assert updates[0][BEFORE] == {"Id": 1, "Name": "Ada", "Fee": None}
    assert updates[0][AFTER] == {"Id": 1, "Name": None, "Fee": None}
    assert [change["given"] for change in updates] == [
        {"before": ["Name"], "after": ["Name"]},
        {"before": [], "after": []},
    ]
    [insert] = changes("INSERT", [({"Id": "1"}, {"Fee": "1.25"}, {})], schema, everything)
    assert (insert[BEFORE], insert["given"]) == (None, {"before": None, "after": ["Fee"]})
    assert insert[AFTER] == {"Id": 1, "Name": None, "Fee": Decimal("1.25")}
    [delete] = changes("DELETE", [({"Id": "1"}, {}, {"Fee": "1.25"})], schema, everything)
    assert (delete[AFTER], delete["given"]) == (None, {"before": ["Fee"], "after": None})


def test_a_column_that_came_later_is_left_out_and_one_that_is_gone_is_null() -> None:
    then = {"Id": "INT64", "Later": "BOOL"}
    [change] = changes("INSERT", [({"Id": "1"}, {"Later": True}, {})], ORDERS, then)
    assert change[AFTER] == {"Id": 1, "Name": None}
    assert change["given"]["after"] == []


def test_tables_without_a_key_or_with_nothing_else() -> None:
    one_row = typed_schema({"Name": "STRING"}, [])
    assert KEY not in one_row.names
    [change] = changes("INSERT", [({}, {"Name": "Ada"}, {})], one_row, {"Name": "STRING"})
    assert change[AFTER] == {"Name": "Ada"}
    nothing = typed_schema({}, [])
    [change] = changes("UPDATE", [({}, {}, {})], nothing, {})
    assert change["given"] == {"before": [], "after": []}
    key_only = typed_schema({"Id": "INT64"}, ["Id"])
    [change] = changes("DELETE", [({"Id": "7"}, {}, {})], key_only, {"Id": "INT64"})
    assert (change[KEY], change[BEFORE], change[AFTER]) == ({"Id": 7}, {"Id": 7}, None)


def test_the_schema_is_told_from_others() -> None:
    assert is_typed(ORDERS)
    assert is_typed(typed_schema({"Name": "STRING"}, []))
    assert not is_typed(SCHEMA)
    assert not is_typed(pa.schema([*ORDERS, ("more", pa.int64())]))
    text = ORDERS.get_field_index(AFTER)
    assert not is_typed(ORDERS.set(text, pa.field(AFTER, pa.string())))


@given(st.lists(st.tuples(st.booleans(), st.lists(NAMES, max_size=4)), max_size=8), st.data())
def test_each_mod_of_the_table_is_a_row_in_order(
    drawn: list[tuple[bool, list[dict[str, str | None]]]], data: st.DataObject
) -> None:
    records = [
        record("UPDATE", [({"Id": "1"}, said, {}) for said in mods], COLUMNS, at=at)
        if is_of_table
        else inserts(*range(len(mods)), at=at, table="Keys")
        for at, (is_of_table, mods) in enumerate(drawn)
    ]
    whole = batch(*records)
    cuts = data.draw(st.lists(st.integers(0, len(records)), max_size=3))
    # A slice of a batch shares its buffers.
    parts = [whole.slice(a, b - a) for a, b in pairwise(sorted({0, *cuts, len(records)}))]
    made = [row for part in parts for row in typed_changes(part, TABLE, ORDERS).to_pylist()]
    of_table = [(at, mods) for at, (is_of_table, mods) in enumerate(drawn) if is_of_table]
    assert [(row["commit_timestamp"], row["mod_number"], row[AFTER]["Name"]) for row in made] == [
        (whole["commit_timestamp"][at].as_py(), number, said.get("Name"))
        for at, mods in of_table
        for number, said in enumerate(mods)
    ]
    metadata = [field.name for field in METADATA]
    assert [[row[name] for name in metadata] for row in made] == [
        [whole[name][at].as_py() for name in metadata] for at, mods in of_table for _ in mods
    ]


def test_many_mods_are_converted_in_pieces_that_are_all_of_them() -> None:
    whole = batch(*(inserts(*range(mods), at=at) for at, mods in enumerate((2, 9, 0, 1, 3, 4))))
    pieces = list(in_pieces(whole, 4))
    assert [piece.num_rows for piece in pieces] == [1, 2, 2, 1]
    assert pa.Table.from_batches(pieces).equals(pa.Table.from_batches([whole]))
    assert [piece.num_rows for piece in in_pieces(whole.slice(0, 0), 4)] == [0]


def test_types_that_are_not_known_are_texts() -> None:
    assert arrow_type("INTERVAL") == arrow_type("ARRAY<x>").value_type == pa.string()
    assert json.loads(only_value("FUTURE", {"a": 1})) == {"a": 1}
