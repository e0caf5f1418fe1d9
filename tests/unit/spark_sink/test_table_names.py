"""What outputs call a table: a folder, a topic, a view."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.envelopes.envelope import table_topic
from slackwater.spark_sink.errors import TableNameError
from slackwater.spark_sink.kafka.topics import KafkaTopics
from slackwater.spark_sink.table_names import plain_name, table_of, view_names

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=15)
NEAR = st.text("a-%2D._~", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("Orders", "Orders"),
        ("sales.Order_Lines", "sales.Order_Lines"),
        ("a-b", "a-2Db"),
        ('q"t', "q-22t"),
        ("s/t", "s-2Ft"),
        ("n\nl", "n-0Al"),
        ("ü", "-C3-BC"),
    ],
)
def test_a_tables_name_in_an_output_shows_which_table_it_is(table: str, name: str) -> None:
    assert plain_name(table) == name


@given(NAMES | NEAR)
def test_a_name_in_an_output_says_which_table_it_is_of(table: str) -> None:
    name = plain_name(table)
    assert re.fullmatch("[A-Za-z0-9._-]+", name)
    assert table_of(name) == table


@given(NAMES | NEAR)
def test_other_names_are_of_no_table(name: str) -> None:
    table = table_of(name)
    assert table is None or plain_name(table) == name


@given(st.lists(NAMES | NEAR, min_size=2, max_size=5, unique=True))
def test_no_two_tables_share_a_topic(tables: list[str]) -> None:
    for template in ("{table}", "a.{table}-b", "{table}{table}"):
        assert len({table_topic(template, table) for table in tables}) == len(tables)


@given(st.lists(NAMES | NEAR, min_size=1, max_size=5, unique=True))
def test_each_table_has_a_view_of_its_own_or_two_are_refused_by_name(tables: list[str]) -> None:
    try:
        views = view_names(tables)
    except TableNameError as error:
        refused = error.message
        assert sum(repr(table) in refused for table in tables) > 1
        return
    assert set(views) == set(tables)
    assert len({view.lower() for view in views.values()}) == len(tables)
    assert all(re.fullmatch(r"[A-Za-z0-9_]+", view) for view in views.values())


@pytest.mark.parametrize("twins", [("a.b", "a_b"), ("Orders", "orders"), ("a.B", "A_b")])
def test_tables_that_would_share_a_view_are_named(twins: tuple[str, str]) -> None:
    with pytest.raises(TableNameError) as refused:
        view_names(["other", *twins])
    assert all(repr(table) in refused.value.message for table in twins)
    assert refused.value.hint


def test_a_name_that_no_file_system_or_broker_takes_is_refused() -> None:
    assert plain_name("t" * 200)
    for table in ("t" * 201, "ü" * 34, f"{'s' * 128}.{'t' * 128}"):
        with pytest.raises(TableNameError, match="bytes") as refused:
            plain_name(table)
        assert repr(table) in refused.value.message


def test_changes_and_low_watermarks_never_share_a_topic() -> None:
    for marks in ("db.marks", "db_marks"):
        topics = KafkaTopics("db.{table}", marks, None)
        topics.require_own(["Marks", "orders"])
        with pytest.raises(TableNameError, match=f"'marks'.*sink.watermarks_topic {marks}"):
            topics.require_own(["orders", "marks"])
    KafkaTopics("all", "all", None).require_own(["marks"])


def test_tables_of_which_a_broker_takes_one_alone_are_named() -> None:
    topics = KafkaTopics("db.{table}-changes", None, None)
    topics.require_own(["a.b", "a.B", "a-b"], ["db.a.b-changes"])
    for tables, written in ((["a.b", "a_b"], []), (["a_b"], ["db.a.b-changes"])):
        with pytest.raises(TableNameError) as refused:
            topics.require_own(tables, written)
        assert all(repr(table) in refused.value.message for table in ("a.b", "a_b"))
