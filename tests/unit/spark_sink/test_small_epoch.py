"""Changes that the driver folds are those that a row goes through, and its values are typed."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.reader.schema import SCHEMA
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
    Mod,
    RowChange,
    latest_by_key,
)
from slackwater.spark_sink.tables.row_merges.small_epoch import SmallEpoch, latest_rows
from slackwater.timestamp import datetime_to_us
from slackwater.typed_values import ValueTypeError
from tests.support.epoch_rows import Mods, Record, record
from tests.support.typed_values import VALUES

AT = datetime(2026, 1, 31, 9, tzinfo=UTC)
AT_US = datetime_to_us(AT)
ID = Column("Id", "INT64", is_key=True)
Row = dict[str, Any]
values = st.none() | st.integers(0, 3)
whole_rows = st.fixed_dictionaries({"A": values, "B": values, "C": values})
some_columns = st.dictionaries(st.sampled_from("ABC"), values, min_size=1)
histories = st.lists(
    st.tuples(st.booleans(), st.booleans(), whole_rows, some_columns), min_size=1, max_size=6
)


def lives(row: Row | None, drawn: Sequence[Any]) -> tuple[list[Mod], Row | None]:
    """Return the mods of a row's changes as Spanner would write them, and the row at the end."""
    mods = []
    for place, (is_deleted, is_whole, everything, some) in enumerate(drawn):
        if row is None:
            mod_type, said, row = "INSERT", everything, dict(everything)
        elif is_deleted:
            mod_type, said, row = "DELETE", {}, None
        elif is_whole:
            mod_type, said, row = "UPDATE", everything, dict(everything)
        else:
            mod_type, said, row = "UPDATE", some, {**row, **some}
        mods.append(Mod("{}", mod_type, is_whole, json.dumps(said), AT_US + place))
    return mods, row


def applied(change: RowChange, row: Row | None) -> Row | None:
    """Do to a row what a merge does."""
    if change.is_deleted:
        return None
    if change.is_whole or row is None:
        return {name: change.values.get(name) for name in "ABC"}
    return {**row, **change.values}


@given(st.none() | whole_rows, histories)
def test_an_epochs_changes_of_a_row_are_folded_into_one(row: Row | None, drawn: Any) -> None:
    mods, at_the_end = lives(row, drawn)
    (change,) = latest_by_key(mods).values()
    assert applied(change, row) == at_the_end
    assert change.committed_us == mods[-1].committed_us


def small_epoch(*records: Record) -> SmallEpoch:
    named = [dict(zip(SCHEMA.names, values, strict=True)) for values in records]
    for row in named:
        row["column_types"] = [_struct("column_types", item) for item in row["column_types"]]
        row["mods"] = [_struct("mods", item) for item in row["mods"]]
    return SmallEpoch(pa.Table.from_pylist(named, schema=SCHEMA))


def _struct(column: str, item: Sequence[Any]) -> Mapping[str, Any]:
    names = [field.name for field in SCHEMA.field(column).type.value_type]
    return dict(zip(names, item, strict=True))


def insert(at: int, key: str, columns: Mapping[str, str], **row: Any) -> Record:
    return record("INSERT", [({"Id": key}, row, {})], columns, at=at, table="T")


def test_each_table_has_its_columns_and_its_changes_in_the_order_of_commit() -> None:
    columns = {"Id": "INT64", "A": "STRING"}
    mods: Mods = [({"Id": "1"}, {"A": "two"}, {}), ({"Id": "1"}, {"A": "three"}, {})]
    epoch = small_epoch(
        record("UPDATE", mods, columns, at=7, table="T"),
        insert(3, "1", columns, A="one"),
        record("DELETE", [({"Id": "9"}, {}, {})], {"Id": "INT64"}, at=5, table="sales.Orders"),
    )
    a = Column("A", "STRING", is_key=False)
    assert epoch.columns_by_table() == {"T": (ID, a), "sales.Orders": (ID,)}
    (change,) = epoch.latest("T").values()
    assert (change.is_whole, change.values) == (True, {"A": "three"})
    (deleted,) = epoch.latest("sales.Orders").values()
    assert deleted.is_deleted
    assert epoch.latest("Other") == {}
    assert small_epoch().columns_by_table() == {}


def test_the_latest_record_decides_a_columns_type() -> None:
    epoch = small_epoch(
        insert(9, "1", {"Id": "INT64", "A": "BOOL"}, A=True),
        insert(2, "2", {"Id": "INT64", "A": "STRING"}, A="text"),
        insert(4, "3", {"Id": "INT64", "A": "STRING", "B": "DATE"}, A="text"),
    )
    first, a, b = epoch.columns_by_table()["T"]
    assert (first, a.spanner_type, b.spanner_type) == (ID, "BOOL", "DATE")
    assert a.former_types == ('{"code": "STRING"}',)


def test_values_have_their_columns_types() -> None:
    columns = [Column(f"c{place}", kind, is_key=False) for place, (kind, _, _) in enumerate(VALUES)]
    named = {f"c{place}": value for place, (_, value, _) in enumerate(VALUES)}
    rows = latest_rows({'{"Id":"1"}': RowChange(False, True, named, AT_US)}, [ID, *columns])
    (row,) = rows.to_pylist()
    assert [row[column.name] for column in columns] == [value for _, _, value in VALUES]
    others = ("Id", IS_DELETED, IS_WHOLE, COMMIT_TIMESTAMP)
    assert [row[name] for name in others] == [1, False, True, AT]


def test_rows_that_are_not_whole_say_which_columns_they_have() -> None:
    a, b = Column("A", "STRING", is_key=False), Column("B", "BOOL", is_key=False)
    whole, part = (
        RowChange(False, True, {"B": True}, AT_US),
        RowChange(False, False, {"A": None}, AT_US),
    )
    rows = latest_rows({'{"Id":"1"}': whole, '{"Id":"2"}': part}, [ID, a, b])
    changed = {name: rows.column(IS_CHANGED + name).to_pylist() for name in ("A", "B")}
    assert changed == {"A": [False, True], "B": [True, False]}
    assert rows.column("A").to_pylist() == [None, None]
    only_whole = latest_rows({'{"Id":"1"}': whole}, [ID, a, b])
    assert not any(name.startswith(IS_CHANGED) for name in only_whole.column_names)


def test_nanoseconds_of_keys_have_a_column() -> None:
    columns = mirror_columns([Column("At", "TIMESTAMP", is_key=True)])
    changes = {
        json.dumps({"At": at}): RowChange(True, True, {}, AT_US)
        for at in ("2026-01-31T09:00:00.123456789Z", "2026-01-31T09:00:00Z", None)
    }
    rows = latest_rows(changes, columns)
    assert rows.column("_At_nanoseconds").to_pylist() == [789, 0, None]
    assert rows.column("At")[0].as_py() == AT.replace(microsecond=123456)


def test_a_value_of_another_type_is_refused() -> None:
    bad = RowChange(False, True, {"A": "x"}, AT_US)
    with pytest.raises(ValueTypeError, match="'x' is not of type int64"):
        latest_rows({'{"Id":"1"}': bad}, [ID, replace(ID, name="A", is_key=False)])
