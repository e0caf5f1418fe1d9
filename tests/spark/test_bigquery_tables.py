"""Typed changelogs and mirrors in BigQuery, epoch by epoch, through two owners."""

from __future__ import annotations

import json
import re
import shutil
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.cloud.bigquery import Client, SchemaField, Table
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import (
    AsOfTimeError,
    BadRecordError,
    BigQueryError,
    ColumnNameError,
    PublishError,
)
from slackwater.spark_sink.output.bigquery import clients
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.sinks import managed_tables
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.in_bigquery import merge
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.bigquery import PROJECT, BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.epoch_rows import (
    START,
    Mods,
    Record,
    frame,
    inserts,
    low_watermark,
    make_sink,
    of_two_tables,
    record,
    require_one_owner,
    write,
)
from tests.support.handed_on import Tasks

COLUMNS = {"Id": "INT64", "Name": "STRING"}
SCANNED = (Column("Id", "INT64", True), Column("Name", "STRING(MAX)", False))
TABLE = "sales.Orders"
Rows = list[dict[str, Any]]


@dataclass
class Place:
    """A dataset of one pipeline.

    Attributes:
        folder: of its checkpoint and its log.
        kind: of the sink.
    """

    spark: SparkSession
    server: BigQueryServer
    door: Door
    folder: Path
    kind: str
    dataset: str
    settings: dict[str, str]

    def sink(self, **settings: Any) -> Any:
        made: Any = make_sink(
            f"bq://{PROJECT}/{self.dataset}",
            kind=self.kind,
            format="bigquery",
            checkpoint=str(self.folder / "checkpoint"),
            storage_options=self.server.options(self.door),
            **{**self.settings, **settings},
        )
        return made

    def owner(self, **settings: Any) -> tuple[Any, Tasks]:
        """Return a sink of a new process, and its tasks."""
        sink = self.sink(**settings)
        sink.position(self.spark)
        return sink, Tasks(sink, self.spark)

    def rows(self, table: str = TABLE) -> Rows:
        name = table.replace(".", "_")
        return self.server.query(f"SELECT * FROM `{PROJECT}.{self.dataset}.{name}`")

    def ids(self, table: str = TABLE) -> list[int]:
        rows = self.rows(table)
        return sorted((row if self.kind == "mirror" else row["key"])["Id"] for row in rows)

    def names(self, table: str = TABLE) -> dict[int, Any]:
        """Return the names in a mirror by the ids."""
        rows = [(row["Id"], row["Name"]) for row in self.rows(table)]
        assert len(rows) == len(dict(rows)), "a row is there twice"
        return dict(rows)

    def stated(self) -> str | None:
        """Return the low watermark of all tables."""
        [row] = self.server.query(
            f"SELECT MAX(low_watermark) AS at FROM `{PROJECT}.{self.dataset}._slackwater`"
        )
        return None if row["at"] is None else datetime_to_rfc3339(row["at"])


@pytest.fixture
def new_place(server: BigQueryServer, door: Door, session: SparkSession, tmp_path: Path) -> Any:
    def make(kind: str, **settings: str) -> Place:
        dataset = f"d_{uuid.uuid4().hex}"
        server.client.create_dataset(dataset)
        return Place(session, server, door, tmp_path, kind, dataset, settings)

    return make


@pytest.fixture
def changelogs(new_place: Any) -> Place:
    place: Place = new_place("changelogs")
    return place


@pytest.fixture
def mirrors(new_place: Any) -> Place:
    place: Place = new_place("mirror")
    return place


@pytest.fixture
def upserted(new_place: Any) -> Place:
    """Return a place of mirrors that are consistent each by itself."""
    place: Place = new_place("mirror", consistency="table")
    return place


@pytest.fixture(params=["changelogs", "mirrors", "upserted"])
def place(request: pytest.FixtureRequest) -> Place:
    place: Place = request.getfixturevalue(request.param)
    return place


def of_scan(row: Record) -> Record:
    """Return the record of a row, which is of no transaction."""
    return (row[0], "", *row[2:])


def of_epoch(number: int, *records: Record) -> list[Record]:
    """Return records with the low watermark of their epoch."""
    return [(*one[:-1], low_watermark(number)) for one in records]


def updated(number: int, name: str, *, at: int) -> Record:
    row: Mods = [({"Id": str(number)}, {"Name": name}, {})]
    return record("UPDATE", row, COLUMNS, at=at, capture="NEW_ROW")


def deleted(number: int, *, at: int) -> Record:
    return record("DELETE", [({"Id": str(number)}, {}, {})], COLUMNS, at=at)


def test_one_owner_writes_each_epoch_once(place: Place) -> None:
    require_one_owner(place.spark, place.sink(), place.sink())
    assert place.ids() == [2, 3, 4, 5, 6, 7]
    assert place.ids("Keys") == [1, 2, 3]
    assert place.stated() == datetime_to_rfc3339(low_watermark(3))


@pytest.mark.parametrize(
    ("kind", "requests"),
    [
        ("changelogs", {"AppendRows": 3, "FlushRows": 3}),
        ("mirrors", {"AppendRows": 2, "FlushRows": 2, "BEGIN TRANSACTION": 1}),
        ("upserted", {"AppendRows": 3, "FlushRows": 1}),
    ],
)
def test_in_steady_state_an_epoch_takes_no_new_stream_and_no_query(
    request: pytest.FixtureRequest, kind: str, requests: dict[str, int]
) -> None:
    place: Place = request.getfixturevalue(kind)
    _, tasks = place.owner()
    tasks.write(1, *of_two_tables(1))
    for epoch in (2, 3, 4):
        place.door.requests.clear()
        tasks.write(epoch, *of_two_tables(epoch))
        assert {name: place.door.requests.count(name) for name in place.door.requests} == requests
    assert place.ids("Keys") == [1, 2, 3, 4]


def test_rows_of_which_a_stream_is_gone_are_read_again_by_the_remedy(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_RETRY_S", 1.0)
    _, tasks = place.owner()
    tasks.write(1, *of_epoch(1, *of_two_tables(1)))
    refused = []
    # Mirrors that BigQuery keeps have no other rows that a commit shows.
    hidden = "_slackwater" if place.settings else "Keys"

    def refuse_one(method: str, stream: str) -> None:
        if method == "FlushRows" and hidden in stream:
            refused.append(stream)
            raise RuntimeError("the network is gone")

    place.door.before = refuse_one
    with pytest.raises(PublishError):
        tasks.write(2, *of_epoch(2, *of_two_tables(2)))
    assert refused
    place.server.remove_streams()
    with place.server.door() as place.door:
        with pytest.raises(BigQueryError, match="nobody uses for days") as lost:
            place.owner()
        commits = place.folder / "checkpoint-log" / "_commits"
        assert f"Remove the last file of {commits}" in lost.value.hint
        max(commits.iterdir()).unlink()
        statements = re.findall(r"DELETE FROM [^;]+", lost.value.hint)
        assert len(statements) == (place.kind == "changelogs")
        for statement in statements:
            place.server.query(statement)
        _, tasks = place.owner()
        tasks.write(2, *of_epoch(2, *of_two_tables(2)))
        tasks.write(3, *of_epoch(3, *of_two_tables(3)))
    assert place.ids() == [2, 3, 4, 5, 6, 7]
    assert place.ids("Keys") == [1, 2, 3]


@pytest.mark.parametrize("lost", ["before", "after"], ids=["requests", "answers"])
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
    place: Place = request.getfixturevalue(kind)
    _, tasks = place.owner()
    tasks.write(1, *of_two_tables(1))

    def lose(name: str, _: str) -> None:
        if name == method:
            raise RuntimeError("lost")

    setattr(place.door, lost, lose)
    with suppress(PublishError):
        tasks.write(2, *of_two_tables(2))
    with place.server.door() as place.door:
        _, tasks = place.owner()
        tasks.write(2, *of_two_tables(2))
        tasks.write(3, *of_two_tables(3))
    assert place.ids() == [2, 3, 4, 5, 6, 7]
    assert place.ids("Keys") == [1, 2, 3]


def test_a_scan_goes_on_after_a_kill(place: Place) -> None:
    for chunks in (2, 3):
        sink, _ = place.owner()
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


def test_a_view_shows_all_changelogs_up_to_the_low_watermark(changelogs: Place) -> None:
    _, tasks = changelogs.owner()
    tasks.write(1, *of_epoch(1, *of_two_tables(1)))
    marks = f"{PROJECT}.{changelogs.dataset}._slackwater"

    def lose(method: str, stream: str) -> None:
        if method == "FlushRows" and "_slackwater" in stream:
            raise RuntimeError("lost")

    changelogs.door.before = lose
    with pytest.raises(PublishError):
        tasks.write(2, *of_epoch(2, *of_two_tables(2)))
    assert changelogs.ids() == [2, 3, 4, 5]
    assert changelogs.ids("_cut_sales.Orders") == [2, 3]
    assert changelogs.ids("_cut_Keys") == [1]
    changelogs.door.before = lambda *_: None
    changelogs.owner()
    assert changelogs.ids("_cut_sales.Orders") == [2, 3, 4, 5]
    assert changelogs.server.query(f"SELECT COUNT(*) AS n FROM `{marks}`") == [{"n": 2}]


@pytest.mark.parametrize("records_max", [20_000, 0], ids=["by the driver", "by tasks"])
def test_columns_come_and_a_bad_value_is_set_aside(
    changelogs: Place, monkeypatch: pytest.MonkeyPatch, records_max: int
) -> None:
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", records_max)
    sink, _ = changelogs.owner(bad_records="dead_letter")
    write(changelogs.spark, sink, 1, inserts(1, at=1))
    columns = {"Id": "INT64", "Name": "STRING", "Fee": "INT64"}
    mods: Mods = [({"Id": str(n)}, {"Fee": fee}, {}) for n, fee in enumerate(["7", "x", "8"], 2)]
    bad = record("INSERT", mods, columns, at=2)
    strict, _ = changelogs.owner()
    with pytest.raises(BadRecordError, match="column Fee is not of"):
        write(changelogs.spark, strict, 2, bad)
    for _ in range(2):
        sink, _ = changelogs.owner(bad_records="dead_letter")
        write(changelogs.spark, sink, 2, bad)
    rows = sorted(changelogs.rows(), key=lambda row: row["key"]["Id"])
    fees = [(row["key"]["Id"], row["after"].get("Fee")) for row in rows]
    assert fees == [(1, None), (2, 7), (4, 8)]
    [letter] = (changelogs.folder / "checkpoint-log" / "_dead_letters").glob("*/*.json")
    assert json.loads(letter.read_text())["key"] == '{"Id": "3"}'


@pytest.mark.parametrize("kind", ["mirrors", "upserted"])
def test_rows_are_updated_and_deleted_by_each_owner(
    request: pytest.FixtureRequest, kind: str
) -> None:
    mirrors: Place = request.getfixturevalue(kind)
    _, tasks = mirrors.owner()
    tasks.write(1, inserts(1, 2, 3, at=1))
    tasks.write(2, updated(1, "changed", at=2_000_000), deleted(2, at=2_000_001))
    sink = mirrors.sink()
    assert sink.position(mirrors.spark).complete == low_watermark(2)
    tasks = Tasks(sink, mirrors.spark)
    tasks.write(3, deleted(3, at=3_000_000), inserts(4, at=3_000_001))
    tasks.write(4, deleted(9, at=4_000_000))
    assert mirrors.names() == {1: "changed", 4: "n4"}
    path = f"bq://{PROJECT}/{mirrors.dataset}/{TABLE}"
    stated = read_mirror(mirrors.spark, path, sink._format)
    assert stated is not None
    rows, at = stated
    assert sorted((row["Id"], row["Name"]) for row in rows.collect()) == [(1, "changed"), (4, "n4")]
    assert at == datetime_to_rfc3339(low_watermark(4)) == mirrors.stated()


def test_a_part_of_a_row_is_changed_and_an_epoch_may_be_too_large_for_the_driver(
    mirrors: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tasks = mirrors.owner()
    columns = {"Id": "INT64", "Name": "STRING", "Fee": "INT64"}
    whole: Mods = [({"Id": str(n)}, {"Name": f"n{n}", "Fee": "1"}, {}) for n in (1, 2)]
    part: Mods = [({"Id": "1"}, {"Fee": "2"}, {})]
    none: Mods = [({"Id": "2"}, {"Name": None}, {})]
    tasks.write(1, record("INSERT", whole, columns, at=1))
    tasks.write(2, record("UPDATE", part, columns, at=2))
    with monkeypatch.context() as patched:
        patched.setattr(managed_tables, "_SMALL_RECORDS_MAX", 0)
        tasks.write(3, record("UPDATE", none, columns, at=3))
    rows = {row["Id"]: (row["Name"], row["Fee"]) for row in mirrors.rows()}
    assert rows == {1: ("n1", 2), 2: (None, 1)}


@pytest.mark.parametrize("deletes", ["apply", "mark"])
def test_rows_of_a_former_table_are_gone_and_keys_may_be_null(mirrors: Place, deletes: str) -> None:
    sink, tasks = mirrors.owner(deletes=deletes)
    null: Mods = [({"Id": None}, {"Name": "null"}, {})]
    tasks.write(1, inserts(1, 2, at=1), record("INSERT", null, COLUMNS, at=2))
    again: Mods = [({"Id": None}, {"Name": "again"}, {})]
    tasks.write(2, record("UPDATE", again, COLUMNS, at=2), deleted(2, at=3))

    def present() -> dict[Any, Any]:
        return {row["Id"]: row["Name"] for row in mirrors.rows() if not row.get("_is_deleted")}

    assert present() == {1: "n1", None: "again"}
    sink.drop_recreated(RecreatedTables(tables={TABLE: low_watermark(2)}))
    tasks.write(3, inserts(7, at=3_000_000))
    assert present() == {7: "n7"}
    assert len(mirrors.rows()) == (1 if deletes == "apply" else 4)
    sink.drop_recreated(RecreatedTables(columns={(TABLE, "Name"): low_watermark(3)}))
    tasks.write(4, inserts(1, at=4_000_000, table="Keys"))
    assert present() == {7: None}


def test_changes_of_a_former_owner_that_wakes_up_are_older_than_those_of_its_successor(
    upserted: Place,
) -> None:
    _, tasks = upserted.owner()
    tasks.write(1, inserts(1, 2, 3, at=1))
    is_held, may_go = threading.Event(), threading.Event()

    def hold(method: str, stream: str) -> None:
        if method == "AppendRows" and "Orders" in stream:
            is_held.set()
            assert may_go.wait(600)

    upserted.door.before = hold
    second = [updated(1, "second", at=2_000_000), deleted(2, at=2_000_001)]
    with ThreadPoolExecutor(1) as former:
        late = former.submit(tasks.write, 2, *second)
        assert is_held.wait(600)
        with upserted.server.door() as upserted.door:
            _, successor = upserted.owner()
            successor.write(2, *second)
            third = [updated(1, "third", at=3_000_000), inserts(2, at=3_000_001)]
            successor.write(3, *third, deleted(3, at=3_000_002))
        may_go.set()
        with pytest.raises(PublishError):
            late.result(600)
    assert upserted.names() == {1: "third", 2: "n2"}
    assert upserted.stated() == datetime_to_rfc3339(low_watermark(3))


def test_what_a_former_table_and_a_former_column_had_is_gone_whatever_queries_may_lack(
    upserted: Place,
) -> None:
    sink, tasks = upserted.owner(max_staleness="90m")
    tasks.write(1, inserts(1, 2, at=1))
    sink.drop_recreated(RecreatedTables(tables={TABLE: low_watermark(1)}))
    upserted.door.requests.clear()
    tasks.write(2, inserts(2, 7, at=2_000_000))
    assert upserted.names() == {2: "n2", 7: "n7"}
    assert queries(upserted) == ["maxStaleness None", "SELECT", "maxStaleness 0-0 0 1:30:0"]
    sink.drop_recreated(RecreatedTables(columns={(TABLE, "Name"): low_watermark(2)}))
    tasks.write(3, inserts(1, at=3_000_000, table="Keys"))
    assert upserted.names() == {2: None, 7: None}
    upserted.door.requests.clear()
    # As if the process before it had died while it read.
    sink, _ = upserted.owner(max_staleness="10s")
    assert "maxStaleness 0-0 0 0:0:10" in queries(upserted)
    upserted.settings = {"consistency": "transaction"}
    with pytest.raises(BigQueryError, match="made with consistency: table") as refused:
        upserted.owner()
    assert refused.value.hint.startswith("Set sink.consistency to table")


def queries(place: Place) -> list[str]:
    """Return the queries since the requests were cleared, and what was set for them."""
    return [name for name in place.door.requests if name == "SELECT" or "Staleness" in name]


def test_a_part_of_a_row_and_a_key_with_null_are_refused_where_rows_are_replaced(
    upserted: Place,
) -> None:
    _, tasks = upserted.owner()
    tasks.write(1, inserts(1, 2, at=1))
    part = record("UPDATE", [({"Id": "1"}, {"Name": "new"}, {})], COLUMNS, at=2)
    with pytest.raises(BigQueryError, match="a part of its row only") as refused:
        tasks.write(2, part)
    assert "value_capture_type = 'NEW_ROW'" in refused.value.hint
    with pytest.raises(BigQueryError, match="a key has NULL in Id"):
        tasks.write(2, record("INSERT", [({"Id": None}, {"Name": "x"}, {})], COLUMNS, at=2))
    tasks.write(2, updated(1, "new", at=2))
    assert upserted.names() == {1: "new", 2: "n2"}


def test_a_mirror_that_is_gone_or_gets_another_key_is_not_filled_as_if_it_were_new(
    upserted: Place,
) -> None:
    _, tasks = upserted.owner()
    tasks.write(1, inserts(1, 2, at=1))
    row: Mods = [({"Name": "x"}, {"Id": "1"}, {})]
    other = record("INSERT", row, COLUMNS, at=2, capture="NEW_ROW", key="Name")
    with pytest.raises(BigQueryError, match="its primary key is Id, and the table's is another"):
        tasks.write(2, other)
    retyped: Mods = [({"Id": "one"}, {"Name": "x"}, {})]
    with pytest.raises(BigQueryError, match="its primary key is Id, and the table's is another"):
        tasks.write(2, record("INSERT", retyped, {**COLUMNS, "Id": "STRING"}, at=2))
    assert upserted.names() == {1: "n1", 2: "n2"}
    upserted.server.client.delete_table(f"{PROJECT}.{upserted.dataset}.sales_Orders")
    upserted.server.remove_streams()
    with pytest.raises(BigQueryError, match="Restore the table"):
        tasks.write(2, inserts(3, at=2_000_000))


def test_a_scanned_key_with_null_is_refused_where_rows_are_replaced(upserted: Place) -> None:
    sink, _ = upserted.owner()
    sink.begin_scan(upserted.spark, {TABLE: SCANNED})
    null = record("INSERT", [({"Id": None}, {"Name": "x"}, {})], COLUMNS, at=0)
    with pytest.raises(BigQueryError, match="a key has NULL in Id"):
        sink.add_scanned(frame(upserted.spark, [of_scan(null)]), 0, START)
    assert upserted.rows() == []


def test_new_tables_are_made_as_the_settings_ask(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[str, Table] = {}
    create = Client.create_table

    def note(client: Client, table: Table, **options: Any) -> Any:
        made[table.table_id] = table
        return create(client, table, **options)

    monkeypatch.setattr(Client, "create_table", note)
    column = "mod_type" if place.kind == "changelogs" else "Name"
    asked = {"labels.team": "sales", "cluster_by": column}
    if place.kind == "changelogs":
        asked |= {"partition_by": "month", "partition_expiration_days": "400"}
    place.owner(table_properties=asked)[1].write(1, inserts(1, at=1))
    table = made["sales_Orders"]
    assert (table.labels, table.clustering_fields) == ({"team": "sales"}, [column])
    partitioning = table.time_partitioning
    if place.kind == "changelogs":
        assert (partitioning.type_, partitioning.field) == ("MONTH", "commit_timestamp")
        assert partitioning.expiration_ms == 400 * 24 * 3_600_000
    else:
        assert partitioning is None


def test_a_version_as_of_a_time_is_refused(mirrors: Place) -> None:
    sink, tasks = mirrors.owner()
    tasks.write(1, *of_two_tables(1))
    with pytest.raises(AsOfTimeError, match="no versions by Spanner's time"):
        sink.as_of(mirrors.spark, None)


def test_tables_of_others_are_left_alone(place: Place) -> None:
    client = place.server.client
    table = f"{PROJECT}.{place.dataset}.sales_Orders"
    client.create_table(Table(table, [SchemaField("Id", "INTEGER")]))
    _, tasks = place.owner()
    with pytest.raises(BigQueryError, match="was not made by slackwater") as refused:
        tasks.write(1, *of_two_tables(1))
    assert refused.value.hint.startswith("Name a dataset of its own")
    client.delete_table(table)
    place.owner()[1].write(1, *of_two_tables(1))
    assert place.ids() == [2, 3]


def test_a_dataset_that_was_emptied_or_restored_without_epochs_is_refused(place: Place) -> None:
    place.owner()[1].write(1, *of_two_tables(1))
    marks = f"{PROJECT}.{place.dataset}._slackwater"
    place.server.query(f"DELETE FROM `{marks}` WHERE TRUE")
    if place.kind == "changelogs":
        place.server.query(f"DELETE FROM `{PROJECT}.{place.dataset}.sales_Orders` WHERE TRUE")
        place.server.query(f"DELETE FROM `{PROJECT}.{place.dataset}.Keys` WHERE TRUE")
    with pytest.raises(BigQueryError, match="does not have the epoch") as refused:
        place.owner()
    assert refused.value.hint.endswith("restore both as of one time")


def test_large_epochs_of_several_tables_are_written_at_the_same_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", 0)
    _, tasks = place.owner()
    for epoch in (1, 2):
        tasks.write(epoch, *(inserts(epoch, at=epoch, table=f"T{n}") for n in range(6)))
    assert [place.ids(f"T{n}") for n in range(6)] == [[1, 2]] * 6
    assert not list(place.folder.rglob("_staging/*/*/*"))


def test_a_chunk_and_an_epoch_of_more_tables_than_a_transaction_takes_are_whole(
    mirrors: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merge, "TABLES_MAX", 1)
    names = ["A", "B", "C"]
    sink, tasks = mirrors.owner()
    sink.begin_scan(mirrors.spark, dict.fromkeys(names, SCANNED))
    scanned = frame(mirrors.spark, [of_scan(inserts(1, at=0, table=name)) for name in names])
    assert sink.add_scanned(scanned, 0, START) == 3
    sink.end_scan(mirrors.spark, 3, START)
    tasks.write(1, *(inserts(2, at=1, table=name) for name in names))
    assert [mirrors.ids(name) for name in names] == [[1, 2]] * 3


@pytest.mark.parametrize("kind", ["mirrors", "upserted"])
def test_a_log_that_is_lost_in_the_middle_of_a_scan_is_missed(
    request: pytest.FixtureRequest, kind: str
) -> None:
    mirrors: Place = request.getfixturevalue(kind)
    sink, _ = mirrors.owner()
    sink.begin_scan(mirrors.spark, {TABLE: SCANNED})
    sink.add_scanned(frame(mirrors.spark, [of_scan(inserts(1, at=0))]), 0, START)
    shutil.rmtree(mirrors.folder / "checkpoint-log")
    with pytest.raises(BigQueryError, match="rows of an initial scan") as refused:
        mirrors.owner()
    assert refused.value.hint.startswith("Name another dataset, or remove the tables")
    for name in ("_slackwater", "sales_Orders"):
        mirrors.server.client.delete_table(f"{PROJECT}.{mirrors.dataset}.{name}")
    mirrors.owner()


def test_who_describes_a_column_or_removes_a_view_changes_no_rows(place: Place) -> None:
    columns = {"Id": "INT64", "Score": "FLOAT32"}

    def scored(number: int) -> Record:
        mods: Mods = [({"Id": str(number)}, {"Score": 0.5}, {})]
        return record("INSERT", mods, columns, at=number)

    place.owner()[1].write(1, scored(1))
    client = place.server.client
    table = client.get_table(f"{PROJECT}.{place.dataset}.sales_Orders")
    table.schema = [described(field) for field in table.schema]
    client.update_table(table, ["schema"])
    client.delete_table(f"{PROJECT}.{place.dataset}._cut_sales_Orders", not_found_ok=True)
    place.owner()[1].write(2, scored(2))
    assert [field.name for field in client.get_table(table.reference).schema] == [
        field.name for field in table.schema
    ]
    rows = [row if place.kind == "mirror" else row["after"] for row in place.rows()]
    assert [row["Score"] for row in rows] == [0.5, 0.5]
    if place.kind == "changelogs":
        assert place.rows("_cut_sales.Orders")


def described(field: SchemaField) -> SchemaField:
    parts = list(map(described, field.fields))
    return SchemaField(
        field.name, field.field_type, field.mode, description="by others", fields=parts
    )


def test_a_column_whose_name_bigquery_does_not_take_is_named(place: Place) -> None:
    _, tasks = place.owner()
    columns = {"Id": "INT64", "_partition_of": "STRING"}
    mods: Mods = [({"Id": "1"}, {"_partition_of": "x"}, {})]
    with pytest.raises(ColumnNameError, match="bigquery does not take that name"):
        tasks.write(1, record("INSERT", mods, columns, at=1))


def test_two_tables_that_would_have_one_name_are_refused(place: Place) -> None:
    _, tasks = place.owner()
    tasks.write(1, inserts(1, at=1))
    with pytest.raises(Exception, match="sales_Orders"):
        tasks.write(2, inserts(2, at=2, table="sales_Orders"))
