"""Merging rows in Arrow does to each row what its change says."""

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.merged_rows import inserted_rows, places, updated_rows
from slackwater.spark_sink.tables.row_merges.row_changes import RowChange
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.timestamp import datetime_to_us

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
AT_US = datetime_to_us(AT)
KEY = (Column("Id", "INT64", is_key=True), Column("Name", "STRING", is_key=True))
COLUMNS = (
    *KEY,
    Column("A", "INT64", is_key=False),
    Column("L", "ARRAY<STRING>", is_key=False),
)
# Of the mirror's columns the epoch says nothing of the last one.
SCHEMA = pa.schema(
    {
        "Id": pa.int64(),
        "Name": pa.string(),
        "A": pa.int64(),
        "L": pa.list_(pa.string()),
        "Former": pa.string(),
    }
)
SOFT = SCHEMA.append(pa.field("_is_deleted", pa.bool_())).append(
    pa.field("_commit_timestamp", pa.timestamp("us", tz="UTC"))
)
Key = tuple[str | None, str | None]
keys = st.tuples(st.sampled_from([None, "1", "2"]), st.sampled_from([None, "", "x"]))
values = {"A": st.sampled_from([None, "7"]), "L": st.sampled_from([None, [], ["x", None]])}
changes = st.one_of(
    st.just(RowChange(True, True, {}, AT_US)),
    st.builds(lambda row: RowChange(False, True, row, AT_US), st.fixed_dictionaries(values)),
    st.builds(
        lambda row: RowChange(False, False, row, AT_US),
        st.fixed_dictionaries({}, optional=values),
    ),
)


def row_of(key: Key, number: int) -> dict[str, Any]:
    name = dict(zip(("Id", "Name"), (key[0] and int(key[0]), key[1]), strict=True))
    return {**name, "A": number, "L": [str(number)], "Former": f"f{number}"}


def changed(row: dict[str, Any] | None, key: Key, change: RowChange) -> dict[str, Any] | None:
    """Do to a row what a change says, one value at a time."""
    if change.is_deleted:
        return None
    typed = {
        name: int(value) if name == "A" and value is not None else value
        for name, value in change.values.items()
    }
    if row is None:
        return {**row_of(key, 0), "A": None, "L": None, "Former": None, **typed}
    if change.is_whole:
        return {**row, "A": typed.get("A"), "L": typed.get("L")}
    return {**row, **typed}


@given(st.lists(keys, unique=True), st.dictionaries(keys, changes, min_size=1))
def test_rows_are_updated_deleted_and_inserted(there: list[Key], drawn: Any) -> None:
    mirror = {key: row_of(key, number) for number, key in enumerate(there)}
    by_key = {json.dumps({"Id": key[0], "Name": key[1]}): change for key, change in drawn.items()}
    latest = latest_rows(by_key, COLUMNS)
    rows = pa.Table.from_pylist(list(mirror.values()), schema=SCHEMA)
    at = places(rows, latest, KEY)
    order = list(drawn)
    assert at.to_pylist() == [order.index(key) if key in drawn else None for key in there]
    touched = rows.filter(at.is_valid())
    updated = updated_rows(touched, latest.take(at.drop_null()), COLUMNS, keeps_deleted=False)
    is_new = pa.array([key not in mirror for key in order])
    inserted = inserted_rows(latest.filter(is_new), COLUMNS, SCHEMA, keeps_deleted=False)
    assert updated.schema == inserted.schema == SCHEMA
    expected = [changed(mirror.get(key), key, change) for key, change in drawn.items()]
    made = [*updated.to_pylist(), *inserted.to_pylist()]
    assert sorted(map(repr, made)) == sorted(repr(row) for row in expected if row is not None)


@given(st.lists(keys, unique=True), st.dictionaries(keys, changes, min_size=1))
def test_deleted_rows_stay_marked_with_their_last_values(there: list[Key], drawn: Any) -> None:
    before = {"_is_deleted": False, "_commit_timestamp": None}
    mirror = {key: row_of(key, number) | before for number, key in enumerate(there)}
    by_key = {json.dumps({"Id": key[0], "Name": key[1]}): change for key, change in drawn.items()}
    latest = latest_rows(by_key, COLUMNS)
    rows = pa.Table.from_pylist(list(mirror.values()), schema=SOFT)
    at = places(rows, latest, KEY)
    touched = rows.filter(at.is_valid())
    updated = updated_rows(touched, latest.take(at.drop_null()), COLUMNS, keeps_deleted=True)
    is_new = pa.array([key not in mirror for key in drawn])
    inserted = inserted_rows(latest.filter(is_new), COLUMNS, SOFT, keeps_deleted=True)
    expected = []
    for key, change in drawn.items():
        nothing = {**row_of(key, 0), "A": None, "L": None, "Former": None}
        row = changed(mirror.get(key), key, change) or mirror.get(key, nothing)
        expected.append(row | {"_is_deleted": change.is_deleted, "_commit_timestamp": AT})
    made = [*updated.to_pylist(), *inserted.to_pylist()]
    assert {row["_commit_timestamp"] for row in made} == {AT}
    assert sorted(map(_text, made)) == sorted(map(_text, expected))


def test_equal_numbers_are_one_key_and_a_column_that_was_not_there_has_no_value() -> None:
    key = Column("Id", "FLOAT64", is_key=True)
    absent = Column("A", "INT64", is_key=False, absent_at=AT)
    change = RowChange(False, False, {}, AT_US)
    texts = ["0.0", '"NaN"', "1.5"]
    latest = latest_rows({f'{{"Id": {text}}}': change for text in texts}, [key, absent])
    rows = pa.table({"Id": [-0.0, float("nan"), 2.5, None], "A": [1, 2, 3, 4]})
    at = places(rows, latest, [key])
    assert at.to_pylist() == [0, 1, None, None]
    touched = rows.filter(at.is_valid())
    updated = updated_rows(touched, latest.take(at.drop_null()), [key, absent], keeps_deleted=False)
    assert updated["A"].to_pylist() == [None, None]


def _text(row: dict[str, Any]) -> str:
    return repr({name: row[name] for name in SOFT.names if name != "_commit_timestamp"})
