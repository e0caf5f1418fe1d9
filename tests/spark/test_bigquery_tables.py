"""Typed changelogs and mirrors in BigQuery, epoch by epoch, through two owners."""

import re
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.cloud.bigquery import Client, SchemaField, Table

from slackwater.commands.as_of import text_of
from slackwater.commands.options import CutFormat
from slackwater.spark_sink.errors import (
    AsOfTimeError,
    BigQueryError,
    ColumnNameError,
    ObjectStoreError,
    PublishError,
)
from slackwater.spark_sink.output.bigquery import clients
from slackwater.spark_sink.output.bigquery.dataset import Dataset
from slackwater.spark_sink.sink import RecreatedTables
from slackwater.spark_sink.tables.in_bigquery import merge
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.bigquery import PROJECT
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.database_places import (
    COLUMNS,
    SCANNED,
    TABLE,
    BigQueryPlace,
    deleted,
    of_epoch,
    of_scan,
    updated,
)
from tests.support.database_places import changelogs as changelogs
from tests.support.database_places import mirrors as mirrors
from tests.support.database_places import upserted as upserted
from tests.support.epoch_rows import (
    START,
    Mods,
    Record,
    frame,
    inserts,
    low_watermark,
    of_two_tables,
    record,
)


@pytest.fixture(params=["changelogs", "mirrors", "upserted"])
def place(request: pytest.FixtureRequest) -> BigQueryPlace:
    place: BigQueryPlace = request.getfixturevalue(request.param)
    return place


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
    place: BigQueryPlace = request.getfixturevalue(kind)
    _, tasks = place.owner()
    tasks.write(1, *of_two_tables(1))
    for epoch in (2, 3, 4):
        place.door.requests.clear()
        tasks.write(epoch, *of_two_tables(epoch))
        assert {name: place.door.requests.count(name) for name in place.door.requests} == requests
    assert place.ids("Keys") == [1, 2, 3, 4]


def test_rows_of_which_a_stream_is_gone_are_read_again_by_the_remedy(
    place: BigQueryPlace, monkeypatch: pytest.MonkeyPatch
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


def test_a_view_shows_all_changelogs_up_to_the_low_watermark(changelogs: BigQueryPlace) -> None:
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


def test_a_log_that_lacks_an_epoch_whose_low_watermark_is_not_stated_is_refused(
    changelogs: BigQueryPlace,
) -> None:
    """A restart reads the last partitions of changelogs only."""
    _, tasks = changelogs.owner()
    tasks.write(1, *of_epoch(1, inserts(1, at=1_000_000)))
    texts: list[str] = []

    def lose_mark(method: str, stream: str) -> None:
        texts.append(stream)
        if method == "FlushRows" and "_slackwater" in stream:
            raise RuntimeError("lost")

    changelogs.door.before = lose_mark
    with pytest.raises(PublishError):
        tasks.write(2, *of_epoch(2, inserts(2, at=2_000_000)))
    max((changelogs.folder / "checkpoint-log" / "_commits").iterdir()).unlink()
    texts.clear()
    with pytest.raises(ObjectStoreError, match="later than the last epoch"):
        changelogs.owner()
    asked = [text for text in texts if "MAX(low_watermark)" in text and "_slackwater" not in text]
    assert asked
    assert all(" AND commit_timestamp > TIMESTAMP_MICROS(" in text for text in asked)


def test_changes_of_a_former_owner_that_wakes_up_are_older_than_those_of_its_successor(
    upserted: BigQueryPlace,
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
    upserted: BigQueryPlace,
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


def queries(place: BigQueryPlace) -> list[str]:
    """Return the queries since the requests were cleared, and what was set for them."""
    return [name for name in place.door.requests if name == "SELECT" or "Staleness" in name]


def test_a_part_of_a_row_and_a_key_with_null_are_refused_where_rows_are_replaced(
    upserted: BigQueryPlace,
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
    upserted: BigQueryPlace,
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


def test_a_scanned_key_with_null_is_refused_where_rows_are_replaced(
    upserted: BigQueryPlace,
) -> None:
    sink, _ = upserted.owner()
    sink.begin_scan(upserted.spark, {TABLE: SCANNED})
    null = record("INSERT", [({"Id": None}, {"Name": "x"}, {})], COLUMNS, at=0)
    with pytest.raises(BigQueryError, match="a key has NULL in Id"):
        sink.add_scanned(frame(upserted.spark, [of_scan(null)]), 0, START)
    assert upserted.rows() == []


def test_new_tables_are_made_as_the_settings_ask(
    place: BigQueryPlace, monkeypatch: pytest.MonkeyPatch
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


def test_a_chunk_and_an_epoch_of_more_tables_than_a_transaction_takes_are_whole(
    mirrors: BigQueryPlace, monkeypatch: pytest.MonkeyPatch
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
    mirrors: BigQueryPlace = request.getfixturevalue(kind)
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


def test_who_describes_a_column_or_removes_a_view_changes_no_rows(place: BigQueryPlace) -> None:
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


def test_a_column_whose_name_bigquery_does_not_take_is_named(place: BigQueryPlace) -> None:
    _, tasks = place.owner()
    columns = {"Id": "INT64", "_partition_of": "STRING"}
    mods: Mods = [({"Id": "1"}, {"_partition_of": "x"}, {})]
    with pytest.raises(ColumnNameError, match="bigquery does not take that name"):
        tasks.write(1, record("INSERT", mods, columns, at=1))


def test_two_tables_that_would_have_one_name_are_refused(place: BigQueryPlace) -> None:
    _, tasks = place.owner()
    tasks.write(1, inserts(1, at=1))
    with pytest.raises(Exception, match="sales_Orders"):
        tasks.write(2, inserts(2, at=2, table="sales_Orders"))


def test_a_time_names_the_one_at_which_all_mirrors_were_as_of_it(
    mirrors: BigQueryPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "_RETRY_S", 1.0)
    monkeypatch.setattr(merge, "TABLES_MAX", 1)
    mirrors.server.has_time_travel = True
    sink, tasks = mirrors.owner()
    tasks.write(1, inserts(1, at=1))
    tasks.write(2, inserts(2, at=2), inserts(3, at=2, table="Keys"))
    tasks.write(4, inserts(4, at=3), inserts(5, at=3, table="Keys"), deleted(2, at=4))

    def refuse_last(kind: str, text: str) -> None:
        if kind == "BEGIN TRANSACTION" and "SET low_watermark" in text:
            raise RuntimeError("the network is gone")

    def at(epoch: int | None) -> dict[str, list[int]]:
        cut = sink.as_of(mirrors.spark, epoch and low_watermark(epoch))
        rows = {}
        for of, view in zip(cut.tables, ["Keys", "sales_Orders"], strict=True):
            script = text_of(cut, CutFormat.SQL).partition(f"TABLE `{view}` AS\n")[2]
            query = script.partition(";")[0].strip()
            rows[of.table] = sorted(row["Id"] for row in mirrors.server.query(query))
        return rows

    try:
        for _ in range(2):
            assert at(1) == {"Keys": [], TABLE: [1]}
            assert at(2) == {"Keys": [3], TABLE: [1, 2]}
            assert at(3) == {"Keys": [3], TABLE: [1, 2]}
            assert at(4) == at(None) == {"Keys": [3, 5], TABLE: [1, 4]}
            mirrors.door.before = refuse_last
            with pytest.raises(PublishError):
                tasks.write(5, inserts(6, at=5), inserts(7, at=5, table="Keys"))
            # One mirror has the next epoch, which nobody has stated.
            assert {name: mirrors.ids(name) for name in ("Keys", TABLE)} != at(4)
        monkeypatch.setattr(Dataset, "time_travel_hours", 1)
        with pytest.raises(AsOfTimeError, match=r"can't be read at .* any more"):
            at(1)
    finally:
        mirrors.server.has_time_travel = False
