"""Tables in databases, epoch by epoch, through two owners: each kind in each database."""

import json
import re
import shutil
from contextlib import suppress
from typing import Any

import pytest

from slackwater.commands.as_of import text_of
from slackwater.commands.options import CutFormat
from slackwater.spark_sink.errors import AsOfTimeError, BadRecordError, PublishError, SinkError
from slackwater.spark_sink.output.bigquery import clients
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.sinks import managed_tables
from slackwater.spark_sink.tables.mirror_table import former_name, read_mirror
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.database_places import (
    COLUMNS,
    SCANNED,
    TABLE,
    DatabasePlace,
    DuckLakePlace,
    deleted,
    of_scan,
    updated,
)
from tests.support.database_places import changelogs as changelogs
from tests.support.database_places import changelogs_in_ducklake as changelogs_in_ducklake
from tests.support.database_places import changelogs_in_postgresql as changelogs_in_postgresql
from tests.support.database_places import in_ducklake as in_ducklake
from tests.support.database_places import in_own_ducklake as in_own_ducklake
from tests.support.database_places import in_postgresql as in_postgresql
from tests.support.database_places import mirrors as mirrors
from tests.support.database_places import upserted as upserted
from tests.support.epoch_rows import (
    START,
    Mods,
    frame,
    inserts,
    low_watermark,
    of_two_tables,
    record,
    require_one_owner,
    write,
)
from tests.support.handed_on import Tasks
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server

TYPED = ["changelogs", "changelogs_in_postgresql", "changelogs_in_ducklake"]
TRANSACTIONS = ["in_postgresql", "in_ducklake"]
CONSISTENT = ["mirrors", *TRANSACTIONS]
# Their epochs are written by what writes the others'.
LONG = ("changelogs_in_ducklake", "upserted")


def places(*kinds: str) -> list[Any]:
    """Return a fixture's parameters, those of LONG with the long tests."""
    return [pytest.param(k, marks=pytest.mark.long if k in LONG else ()) for k in kinds]


@pytest.fixture(params=places(*TYPED, *CONSISTENT, "upserted"))
def place(request: pytest.FixtureRequest) -> DatabasePlace:
    place: DatabasePlace = request.getfixturevalue(request.param)
    return place


@pytest.fixture(params=places(*TYPED))
def typed(request: pytest.FixtureRequest) -> DatabasePlace:
    """Return a place of typed changelogs."""
    place: DatabasePlace = request.getfixturevalue(request.param)
    return place


@pytest.fixture(params=CONSISTENT)
def consistent(request: pytest.FixtureRequest) -> DatabasePlace:
    """Return a place of mirrors that are all of one time."""
    place: DatabasePlace = request.getfixturevalue(request.param)
    return place


@pytest.fixture(params=TRANSACTIONS)
def in_transactions(request: pytest.FixtureRequest) -> DatabasePlace:
    """Return a place of mirrors whose epochs are transactions."""
    place: DatabasePlace = request.getfixturevalue(request.param)
    return place


def test_one_owner_writes_each_epoch_once(place: DatabasePlace) -> None:
    require_one_owner(place.spark, place.sink(), place.sink())
    assert place.ids() == [2, 3, 4, 5, 6, 7]
    assert place.ids("Keys") == [1, 2, 3]
    assert place.stated() == datetime_to_rfc3339(low_watermark(3))


@pytest.mark.parametrize("lost", ["requests", "answers"])
@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("changelogs", "AppendRows"),
        ("changelogs", "FlushRows"),
        ("mirrors", "AppendRows"),
        ("mirrors", "FlushRows"),
        ("mirrors", "BEGIN TRANSACTION"),
        ("upserted", "AppendRows"),
        ("upserted", "FlushRows"),
        ("in_postgresql", "COPY"),
        ("in_postgresql", "COMMIT"),
        ("changelogs_in_postgresql", "COMMIT"),
        ("in_ducklake", "COMMIT"),
    ],
)
def test_an_epoch_whose_request_or_answer_is_lost_is_written_once(
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    method: str,
    lost: str,
) -> None:
    monkeypatch.setattr(clients, "_RETRY_S", 1.0)
    place: DatabasePlace = request.getfixturevalue(kind)
    _, tasks = place.owner()
    tasks.write(1, *of_two_tables(1))

    place.lose(method, lost)
    with suppress(PublishError):
        tasks.write(2, *of_two_tables(2))
    with place.new_door():
        _, tasks = place.owner()
        tasks.write(2, *of_two_tables(2))
        tasks.write(3, *of_two_tables(3))
    assert place.ids() == [2, 3, 4, 5, 6, 7]
    assert place.ids("Keys") == [1, 2, 3]


def test_a_scan_goes_on_after_a_kill(place: DatabasePlace) -> None:
    assert not place.sink().position(place.spark).has_tables
    for chunks in (2, 3):
        sink = place.sink()
        # Without tables the scan's rows would count as lost, with them as another scan's.
        assert sink.position(place.spark).has_tables is (chunks == 3)
        sink.begin_scan(place.spark, {TABLE: SCANNED, "Empty": SCANNED})
        for chunk in range(chunks):
            scanned = frame(place.spark, [of_scan(inserts(chunk, at=0))])
            assert sink.add_scanned(scanned, chunk, START) == 1
    assert place.stated() is None
    sink.end_scan(place.spark, 3, START)
    assert place.stated() == datetime_to_rfc3339(START)
    write(place.spark, sink, 1, inserts(7, at=1))
    assert place.ids() == [0, 1, 2, 7]
    assert place.rows("Empty") == []
    assert place.owner()[0].position(place.spark).complete == low_watermark(1)


@pytest.mark.parametrize("kind", places(*CONSISTENT, "upserted"))
def test_rows_are_updated_and_deleted_by_each_owner(
    request: pytest.FixtureRequest, kind: str
) -> None:
    place: DatabasePlace = request.getfixturevalue(kind)
    _, tasks = place.owner()
    tasks.write(1, inserts(1, 2, 3, at=1))
    tasks.write(2, updated(1, "changed", at=2_000_000), deleted(2, at=2_000_001))
    sink = place.sink()
    assert sink.position(place.spark).complete == low_watermark(2)
    tasks = Tasks(sink, place.spark)
    tasks.write(3, deleted(3, at=3_000_000), inserts(4, at=3_000_001))
    tasks.write(4, deleted(9, at=4_000_000))
    assert place.names() == {1: "changed", 4: "n4"}
    path = f"{place.at()['path']}/{TABLE}"
    stated = read_mirror(place.spark, path, sink._format)
    assert stated is not None
    rows, at = stated
    assert sorted((row["Id"], row["Name"]) for row in rows.collect()) == [(1, "changed"), (4, "n4")]
    assert at == datetime_to_rfc3339(low_watermark(4)) == place.stated()


def test_a_part_of_a_row_is_changed_and_an_epoch_may_be_too_large_for_the_driver(
    consistent: DatabasePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tasks = consistent.owner()
    columns = {"Id": "INT64", "Name": "STRING", "Fee": "INT64"}
    whole: Mods = [({"Id": str(n)}, {"Name": f"n{n}", "Fee": "1"}, {}) for n in (1, 2)]
    part: Mods = [({"Id": "1"}, {"Fee": "2"}, {})]
    none: Mods = [({"Id": "2"}, {"Name": None}, {})]
    tasks.write(1, record("INSERT", whole, columns, at=1))
    tasks.write(2, record("UPDATE", part, columns, at=2))
    with monkeypatch.context() as patched:
        patched.setattr(managed_tables, "_SMALL_RECORDS_MAX", 0)
        tasks.write(3, record("UPDATE", none, columns, at=3))
    rows = {row["Id"]: (row["Name"], row["Fee"]) for row in consistent.rows()}
    assert rows == {1: ("n1", 2), 2: (None, 1)}


@pytest.mark.parametrize("deletes", ["apply", "mark"])
def test_rows_of_a_former_table_are_gone_and_keys_may_be_null(
    consistent: DatabasePlace, deletes: str
) -> None:
    sink, tasks = consistent.owner(deletes=deletes)
    null: Mods = [({"Id": None}, {"Name": "null"}, {})]
    tasks.write(1, inserts(1, 2, at=1), record("INSERT", null, COLUMNS, at=2))
    again: Mods = [({"Id": None}, {"Name": "again"}, {})]
    tasks.write(2, record("UPDATE", again, COLUMNS, at=2), deleted(2, at=3))

    def present() -> dict[Any, Any]:
        return {row["Id"]: row["Name"] for row in consistent.rows() if not row.get("_is_deleted")}

    assert present() == {1: "n1", None: "again"}
    sink.drop_recreated(RecreatedTables(tables={TABLE: low_watermark(2)}))
    tasks.write(3, inserts(7, at=3_000_000))
    assert present() == {7: "n7"}
    assert len(consistent.rows()) == (1 if deletes == "apply" else 4)
    sink.drop_recreated(RecreatedTables(columns={(TABLE, "Name"): low_watermark(3)}))
    tasks.write(4, inserts(1, at=4_000_000, table="Keys"))
    assert present() == {7: None}


def test_a_table_of_others_that_is_made_again_in_spanner_is_none_of_the_pipelines(
    consistent: DatabasePlace,
) -> None:
    """A filter leaves it out, or another pipeline reads it."""
    consistent.make_others()
    sink, tasks = consistent.owner()
    tasks.write(1, inserts(1, at=1, table="Keys"))
    times = {TABLE: low_watermark(1)}, {(TABLE, "Id"): low_watermark(1)}
    sink.drop_recreated(RecreatedTables(*times))
    tasks.write(2, inserts(2, at=2_000_000, table="Keys"))
    assert consistent.ids("Keys") == [1, 2]


def test_a_mirror_that_is_not_there_has_nothing_to_verify(consistent: DatabasePlace) -> None:
    sink, tasks = consistent.owner()
    tasks.write(1, inserts(1, at=1, table="Keys"))
    assert read_mirror(consistent.spark, sink._place(TABLE), sink._format) is None
    assert read_mirror(consistent.spark, sink._place("Keys"), sink._format) is not None


def test_a_key_whose_case_has_changed_is_compared_by_the_mirrors_name(
    in_transactions: DatabasePlace,
) -> None:
    sink, tasks = in_transactions.owner()
    tasks.write(1, inserts(1, 2, 3, at=1))
    rows = sink._table(in_transactions.spark, TABLE).current_rows(RowRange("ID", 2, None))
    assert sorted(row["Id"] for row in rows.collect()) == [2, 3]


def test_a_table_that_is_complete_is_stated_without_a_further_epoch(
    in_transactions: DatabasePlace,
) -> None:
    sink, tasks = in_transactions.owner()
    sink.leave_unpublished(frozenset({TABLE, "Keys"}))
    tasks.write(1, *of_two_tables(1))

    def stated(table: str) -> bool:
        return read_mirror(in_transactions.spark, sink._place(table), sink._format) is not None

    assert (stated(TABLE), stated("Keys")) == (False, False)
    # The next epoch states it itself.
    sink.publish_complete(in_transactions.spark, TABLE, low_watermark(2))
    assert not stated(TABLE)
    sink.publish_complete(in_transactions.spark, TABLE, low_watermark(1))
    assert (stated(TABLE), stated("Keys")) == (True, False)


def test_without_its_log_the_output_ends_where_the_database_says(
    in_transactions: DatabasePlace,
) -> None:
    """The database was restored, and the disk with checkpoint and log is gone; or a failover."""
    in_transactions.owner()[1].write(1, *of_two_tables(1))
    in_transactions.sink()._watermarks.add_scan(0, low_watermark(2))
    with pytest.raises(SinkError, match="does not have the epoch") as refused:
        in_transactions.owner()
    [folder] = re.findall("remove (.+/_watermarks),", refused.value.hint)
    shutil.rmtree(folder)
    position = in_transactions.sink().position(in_transactions.spark)
    assert (position.complete, position.begun) == (low_watermark(1), None)


@pytest.mark.parametrize("kind", ["upserted", "in_postgresql"])
def test_a_version_as_of_a_time_is_refused(request: pytest.FixtureRequest, kind: str) -> None:
    place: DatabasePlace = request.getfixturevalue(kind)
    sink, tasks = place.owner()
    tasks.write(1, *of_two_tables(1))
    with pytest.raises(AsOfTimeError, match="no versions by Spanner's time"):
        sink.as_of(place.spark, None)


def test_tables_of_others_are_left_alone(place: DatabasePlace) -> None:
    remove = place.make_others()
    _, tasks = place.owner()
    with pytest.raises(SinkError, match="was not made by slackwater") as refused:
        tasks.write(1, *of_two_tables(1))
    assert refused.value.hint.startswith(place.refused_elsewhere)
    remove()
    place.owner()[1].write(1, *of_two_tables(1))
    assert place.ids() == [2, 3]


def test_a_database_that_was_emptied_or_restored_without_epochs_is_refused(
    place: DatabasePlace,
) -> None:
    place.owner()[1].write(1, *of_two_tables(1))
    place.forget()
    with pytest.raises(SinkError, match="does not have the epoch") as refused:
        place.owner()
    assert "restore both as of one time" in refused.value.hint


@pytest.mark.parametrize("kind", places("mirrors", "upserted", *TRANSACTIONS))
def test_large_epochs_of_several_tables_are_written_at_the_same_time(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    place: DatabasePlace = request.getfixturevalue(kind)
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", 0)
    _, tasks = place.owner()
    for epoch in (1, 2):
        tasks.write(epoch, *(inserts(epoch, at=epoch, table=f"T{n}") for n in range(3)))
    assert [place.ids(f"T{n}") for n in range(3)] == [[1, 2]] * 3
    assert not list(place.folder.rglob("_staging/*/*/*"))


@pytest.mark.parametrize("records_max", [20_000, 0], ids=["by the driver", "by tasks"])
def test_columns_come_and_a_bad_value_is_set_aside(
    typed: DatabasePlace, monkeypatch: pytest.MonkeyPatch, records_max: int
) -> None:
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", records_max)
    sink, _ = typed.owner(bad_records="dead_letter")
    write(typed.spark, sink, 1, inserts(1, at=1), inserts(1, at=1, table="Keys"))
    columns = {"Id": "INT64", "Name": "STRING", "Fee": "INT64"}
    mods: Mods = [({"Id": str(n)}, {"Fee": fee}, {}) for n, fee in enumerate(["7", "x", "8"], 2)]
    bad = record("INSERT", mods, columns, at=2)
    strict, _ = typed.owner()
    with pytest.raises(BadRecordError, match="column Fee is not of"):
        write(typed.spark, strict, 2, bad)
    for _ in range(2):
        sink, _ = typed.owner(bad_records="dead_letter")
        write(typed.spark, sink, 2, bad)
    rows = sorted(typed.rows(), key=lambda row: row["key"]["Id"])
    fees = [(row["key"]["Id"], row["after"].get("Fee")) for row in rows]
    assert fees == [(1, None), (2, 7), (4, 8)]
    assert typed.ids("Keys") == [1]
    assert not list(typed.folder.rglob("_staging/*/*/*"))
    [letter] = (typed.log_folder / "_dead_letters").glob("*/*.json")
    assert json.loads(letter.read_text())["key"] == '{"Id": "3"}'


def test_a_column_that_comes_back_in_other_case_and_of_another_type_leaves_its_values(
    in_postgresql: DatabasePlace,
) -> None:
    _, tasks = in_postgresql.owner()
    before, after = {"Id": "INT64", "Price": "INT64"}, {"Id": "INT64", "PRICE": "STRING"}
    inserted: Mods = [({"Id": "1"}, {"Price": "7"}, {})]
    changed: Mods = [({"Id": "1"}, {"PRICE": "x"}, {})]
    tasks.write(1, record("INSERT", inserted, before, at=1))
    tasks.write(2, record("UPDATE", changed, after, at=2))
    assert in_postgresql.rows() == [{"Id": 1, "Price_was_bigint": 7, "PRICE": "x"}]


def test_the_name_of_a_former_column_is_one_that_the_database_does_not_cut() -> None:
    name = "N" * 63
    first = former_name(name, "STRING", (), 63)
    assert first == "N" * 52 + "_was_string"
    second = former_name(name, "STRING", [first.lower()], 63)
    assert len(second) == 63
    assert second.endswith("N_was_string_2")
    assert former_name("Price", "BIGINT", ()) == "Price_was_bigint"


def test_a_time_names_the_snapshot_of_all_mirrors_in_a_lake(in_own_ducklake: DuckLakePlace) -> None:
    sink, tasks = in_own_ducklake.owner()
    tasks.write(1, inserts(1, at=1))
    tasks.write(2, inserts(2, at=2), inserts(3, at=2, table="Keys"))
    tasks.write(3, inserts(4, at=3), deleted(2, at=4))

    def at(epoch: int) -> dict[str, list[int] | None]:
        cut = sink.as_of(in_own_ducklake.spark, low_watermark(epoch))
        statements = list(text_of(cut, CutFormat.SQL).split(";"))
        with in_own_ducklake.lake.opened() as reader:
            for statement in filter(str.strip, statements):
                reader.execute(statement)
            return {
                of.table: sorted(reader.execute(f'SELECT "Id" FROM "{view}"').fetchnumpy()["Id"])
                for of, view in zip(cut.tables, ["Keys", "sales_Orders"], strict=True)
            }

    assert at(1) == {"Keys": [], TABLE: [1]}
    assert at(2) == {"Keys": [3], TABLE: [1, 2]}
    assert at(3) == {"Keys": [3], TABLE: [1, 4]}
    in_own_ducklake.lake.run("CALL ducklake_expire_snapshots('lake', versions => range(3, 8))")
    with pytest.raises(AsOfTimeError, match="was removed"):
        at(1)
