"""Columns that are left out are gone, and what stays is as Spanner wrote it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from slackwater.config.filters import tables_to_read
from slackwater.config.settings import FilterSettings
from slackwater.reader.database.watched_tables import Table
from slackwater.spark_sink.filters.column_filter import ColumnFilter, select_members
from slackwater.spark_sink.filters.record_filter import RecordFilter

NAMES = st.text(min_size=1, max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
SPACE = st.sampled_from(["", " ", "\n\t", "  "])


def column(name: str, *, is_key: bool = False) -> dict[str, Any]:
    return {"name": name, "type": "{}", "is_primary_key": is_key, "ordinal_position": 1}


def row(table: str, **values: str) -> dict[str, Any]:
    """A record of one mod, with its values' texts."""
    names = json.loads(values.get("new", "{}")) | json.loads(values.get("old", "{}"))
    return {
        "table_name": table,
        "column_types": [column("Id", is_key=True), *map(column, names)],
        "mods": [
            {
                "keys": '{"Id":"1"}',
                "new_values": values.get("new", "{}"),
                "old_values": values.get("old", "{}"),
            }
        ],
        "mod_type": "UPDATE",
    }


@given(st.dictionaries(NAMES, VALUES), st.sets(NAMES), SPACE, st.booleans())
def test_left_out_members_are_missing_and_the_others_keep_their_text(
    values: dict[str, Any], others: set[str], space: str, ascii_only: bool
) -> None:
    left_out = others | set(list(values)[::2])
    members = {
        name: f"{json.dumps(name, ensure_ascii=ascii_only)}{space}:{space}"
        f"{json.dumps(value, ensure_ascii=ascii_only)}"
        for name, value in values.items()
    }
    text = f"{space}{{{space}{f'{space},{space}'.join(members.values())}{space}}}{space}"
    selected = select_members(text, lambda name: name not in left_out)
    expected = [member for name, member in members.items() if name not in left_out]
    assert selected == (text if len(expected) == len(members) else f"{{{','.join(expected)}}}")
    assert list(json.loads(selected)) == [name for name in values if name not in left_out]


def test_numbers_are_not_written_again() -> None:
    huge = "9" * 5_000
    text = f'{{"A":1.50,"B":1e+300,"C":-0.0,"D":{huge},"E":0.1000000000000000055511151231,"F":1}}'
    assert select_members(text, lambda name: name != "F") == text.replace(',"F":1', "")


@pytest.mark.parametrize(
    "text", ["[]", "null", '"A"', '{"A"}', '{"A":"x!"', '{"A":"x!";"B":2}', "{1:2}", '{"x!":x!}']
)
def test_a_text_that_is_not_an_object_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a JSON object|Expecting") as caught:
        select_members(text, lambda name: False)
    assert "x!" not in str(caught.value)


@pytest.mark.parametrize("text", [None, "", "{}", " { } "])
def test_missing_values_stay_missing(text: str | None) -> None:
    assert select_members(text, lambda name: False) == text


@pytest.mark.parametrize(
    ("column_filter", "names"),
    [
        (ColumnFilter(), "Id Item Note Email"),
        (ColumnFilter(columns=("sales.Orders.Item",)), "Id Item"),
        (ColumnFilter(columns=("*.Orders.?ote", "sales.*.Email")), "Id Note Email"),
        (ColumnFilter(columns=("Orders.Item",)), "Id"),
        (ColumnFilter(exclude_columns=("*.Email",)), "Id Item Note"),
        (ColumnFilter(exclude_columns=("sales.Orders.*",)), "Id"),
        (ColumnFilter(("sales.*",), ("*.Orders.I*", "*.N?te")), "Id Email"),
    ],
)
def test_a_record_keeps_its_key_and_the_columns_that_are_kept(
    column_filter: ColumnFilter, names: str
) -> None:
    values = '{"Item":"a","Note":null,"Email":"x@y"}'
    record = row("sales.Orders", new=values, old=values)
    filtered = column_filter.apply_to_row(record)
    assert [c["name"] for c in filtered["column_types"]] == names.split()
    (mod,) = filtered["mods"]
    assert mod["keys"] == '{"Id":"1"}'
    for part in ("new_values", "old_values"):
        assert ["Id", *json.loads(mod[part])] == names.split()
    assert {**filtered, "column_types": 0, "mods": 0} == {**record, "column_types": 0, "mods": 0}


def test_a_change_of_left_out_columns_alone_stays_a_record() -> None:
    record_filter = RecordFilter(exclude_columns=("Orders.Email",))
    record = row("Orders", new='{"Email":"new"}', old='{"Email":"old"}')
    assert record_filter.keeps_all
    filtered = record_filter.column_filter.apply_to_row(record)
    assert filtered["mods"] == [{"keys": '{"Id":"1"}', "new_values": "{}", "old_values": "{}"}]


def test_a_value_that_no_column_type_describes_is_left_out_by_its_name() -> None:
    record = row("T", new='{"A":1}') | {"column_types": [column("Id", is_key=True)]}
    assert ColumnFilter(columns=("T.B",)).apply_to_row(record)["mods"][0]["new_values"] == "{}"


@pytest.mark.parametrize("key", ["columns", "exclude_columns", "when_changed"])
def test_a_glob_without_a_dot_is_refused(key: str) -> None:
    globs: dict[str, Any] = {key: ("Orders.Item", "Email")}
    with pytest.raises(ValueError, match="'Email' can't name a column"):
        RecordFilter(**globs)
    with pytest.raises(ValidationError, match="'Email' can't name a column"):
        FilterSettings(**globs)


def test_tables_are_read_without_the_columns_that_are_left_out() -> None:
    types = {"A": "INT64", "Id": "INT64", "B": "INT64"}
    tables = [Table("T", types, ("Id",)), Table("U", types, ()), Table("V", types, ("A",))]
    record_filter = RecordFilter(
        exclude_tables=("V",), columns=("T.*",), exclude_columns=("*.B", "*.Id")
    )
    (table,) = tables_to_read(tables, record_filter)
    # Nothing is left of U, which has no key.
    assert (table.name, list(table.columns), table.key) == ("T", ["A", "Id"], ("Id",))
