"""Records are kept if they change one of the columns that filter.when_changed names."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slackwater.commands.sql_views import views
from slackwater.config.filters import globs_without_match, tables_to_read
from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.reader.database.watched_tables import Table
from slackwater.spark_sink.errors import UnknownChangesError
from slackwater.spark_sink.filters.change_filter import require_shown_changes
from slackwater.spark_sink.filters.record_filter import ModType, RecordFilter
from tests.unit.config.test_settings import MINIMAL

SHOWN = ("OLD_AND_NEW_VALUES", "NEW_VALUES", "NEW_ROW_AND_OLD_VALUES")
# A full name has one dot at most, and a column may have any.
TABLES = st.text("ab.", min_size=1, max_size=4).filter(lambda table: table.count(".") < 2)
NAMES = st.text("ab.", min_size=1, max_size=3)
GLOBS = st.text("ab.*?", max_size=6).filter(lambda glob: "." in glob)


def glob_matches(glob: str, text: str) -> bool:
    """Return whether a glob matches a text, one character after the other."""
    if not glob:
        return not text
    if glob[0] == "*":
        return any(glob_matches(glob[1:], text[at:]) for at in range(len(text) + 1))
    return bool(text) and glob[0] in ("?", text[0]) and glob_matches(glob[1:], text[1:])


def update(table: str, capture: str, *mods: tuple[set[str], set[str]]) -> dict[str, Any]:
    """Return an update, with the names in new_values and in old_values of each mod."""
    return {
        "table_name": table,
        "mod_type": "UPDATE",
        "value_capture_type": capture,
        "transaction_tag": "",
        "is_system_transaction": False,
        "mods": [
            {
                "keys": '{"Id":"1"}',
                "new_values": json.dumps(dict.fromkeys(sorted(new), "x")),
                "old_values": json.dumps(dict.fromkeys(sorted(old), None)),
            }
            for new, old in mods
        ],
    }


@given(
    st.lists(GLOBS, min_size=1, max_size=3),
    TABLES,
    st.sampled_from(SHOWN),
    st.lists(st.tuples(st.sets(NAMES, max_size=3), st.sets(NAMES, max_size=3)), max_size=3),
)
def test_an_update_is_kept_if_one_of_its_mods_changes_a_named_column(
    globs: list[str], table: str, capture: str, mods: list[tuple[set[str], set[str]]]
) -> None:
    if capture.startswith("NEW_ROW"):
        # The row is there whole; what changed are the columns with old values.
        mods = [(new | old, old) for new, old in mods]
        changed = [old for _, old in mods]
    else:
        changed = [new for new, _ in mods]
    expected = any(
        glob_matches(glob, f"{table}.{name}")
        for glob in globs
        for of_mod in changed
        for name in of_mod
    )
    record_filter = RecordFilter(when_changed=tuple(globs))
    assert record_filter.keeps(update(table, capture, *mods)) is expected


@given(GLOBS, TABLES, st.sampled_from(("INSERT", "DELETE")), st.sampled_from((*SHOWN, "NEW_ROW")))
def test_an_insert_or_delete_is_kept_if_its_table_may_have_a_named_column(
    glob: str, table: str, mod_type: str, capture: str
) -> None:
    row = update(table, capture, (set(), set())) | {"mod_type": mod_type}
    columns = map(
        "".join, itertools.chain(*(itertools.product("ab.", repeat=n) for n in range(1, 6)))
    )
    expected = any(glob_matches(glob, f"{table}.{column}") for column in columns)
    record_filter = RecordFilter(when_changed=(glob,))
    assert record_filter.keeps(row) is expected
    assert record_filter.keeps_table(table) is expected


@pytest.mark.parametrize("glob", ["sales.Orders.Status", "sales.*", "*.S?atus", "sales.Orders.Id"])
def test_an_update_that_does_not_tell_what_it_changed_is_refused(glob: str) -> None:
    record_filter = RecordFilter(when_changed=(glob,))
    row = update("sales.Orders", "NEW_ROW", ({"Status"}, set()))
    with pytest.raises(UnknownChangesError, match="ALTER CHANGE STREAM"):
        record_filter.keeps(row)
    # What another filter leaves out does not matter.
    for others in (
        replace(record_filter, exclude_tables=("*",)),
        replace(record_filter, mod_types=(ModType.INSERT,)),
        replace(record_filter, transaction_tags=("batch",)),
    ):
        assert not others.keeps(row)


def test_an_update_of_a_table_that_no_glob_names_is_left_out_whatever_it_captures() -> None:
    record_filter = RecordFilter(when_changed=("Orders.Status",))
    assert not record_filter.keeps(update("Customers", "NEW_ROW", ({"Status"}, set())))


def test_a_record_is_judged_by_the_columns_that_the_column_filter_leaves_out_too() -> None:
    record_filter = RecordFilter(when_changed=("T.A",), exclude_columns=("T.A",))
    row = update("T", "NEW_VALUES", ({"A", "B"}, set())) | {"column_types": []}
    assert record_filter.keeps(row)
    (mod,) = record_filter.column_filter.apply_to_row(row)["mods"]
    assert json.loads(mod["new_values"]) == {"B": "x"}


def test_values_that_are_not_an_object_are_refused() -> None:
    row = update("T", "NEW_VALUES", ({"A"}, set()))
    row["mods"][0]["new_values"] = "[1]"
    with pytest.raises(ValueError, match="not a JSON object"):
        RecordFilter(when_changed=("T.A",)).keeps(row)


@pytest.mark.parametrize("capture", SHOWN)
def test_a_stream_that_tells_what_changed_is_taken(capture: str) -> None:
    require_shown_changes(capture)


def test_a_stream_of_whole_rows_alone_is_refused() -> None:
    with pytest.raises(UnknownChangesError) as caught:
        require_shown_changes("NEW_ROW")
    assert caught.value.user_error


def test_tables_that_no_glob_names_are_not_scanned() -> None:
    types = {"Id": "INT64", "Status": "STRING(MAX)"}
    tables = [Table(name, types, ("Id",)) for name in ("Orders", "Customers", "sales.Orders")]
    passing = tables_to_read(tables, RecordFilter(when_changed=("sales.*.Status", "Orders.v.x")))
    assert [table.name for table in passing] == ["Orders", "sales.Orders"]
    assert passing[0].columns == types


def test_a_glob_that_no_update_can_match_is_named() -> None:
    tables = [Table("Orders", {"Id": "INT64", "Status": "STRING(MAX)"}, ("Id",))]
    globs = ("Orders.Status", "Orders.Stauts", "*.Id", "*.S*")
    wrong = globs_without_match(tables, RecordFilter(when_changed=globs))
    assert [(w.setting, w.glob, w.near) for w in wrong] == [
        ("when_changed", "Orders.Stauts", "Orders.Status"),
        ("when_changed", "*.Id", None),
    ]


def settings(folder: Path, **sections: dict[str, Any]) -> Settings:
    path = folder / "slackwater.yaml"
    values = {name: {**MINIMAL.get(name, {}), **section} for name, section in sections.items()}
    path.write_text(yaml.safe_dump(MINIMAL | values))
    return load_settings(path, {})


def test_a_mirror_is_not_made_of_some_of_the_changes(tmp_path: Path) -> None:
    changed = {"when_changed": ["Orders.Status"]}
    assert settings(tmp_path, filter=changed).filter.when_changed == ("Orders.Status",)
    with pytest.raises(SettingsError, match="would not be its table"):
        settings(tmp_path, filter=changed, sink={"kind": "mirror"})
    with pytest.raises(SettingsError, match="would not be its table"):
        next(views(settings(tmp_path, filter=changed), ()))
