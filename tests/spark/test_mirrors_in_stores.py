"""Mirrors in an object store: the driver merges there, without a connector or a jar of Spark's."""

import statistics
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.sink import EpochSummary, RecreatedTables
from slackwater.spark_sink.sinks import managed_tables
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.mirror_table import read_mirror
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.epoch_rows import (
    START,
    Record,
    frame,
    inserts,
    large_records,
    low_watermark,
    make_sink,
    of_two_tables,
    record,
)
from tests.support.object_stores import BUCKET, STORES, Azure, ServedStore, nobody, nothing
from tests.support.tables_in_stores import TablesInStore

COLUMNS = {"Id": "INT64", "Name": "STRING"}
TABLE = "sales.Orders"


class Place(TablesInStore):
    """A folder with mirrors."""

    kind = "mirror"

    def rows(self, table: str) -> dict[int, Any]:
        """Return the names in a mirror by the ids."""
        rows = [(row["Id"], row["Name"]) for row in self.table(table).to_pylist()]
        assert len(rows) == len(dict(rows)), "a row is there twice"
        return dict(rows)

    def published(self, sink: Any, table: str) -> str | None:
        mirror = read_mirror(self.spark, f"{self.path}/{table}", sink._format)
        return None if mirror is None else mirror[1]


LONG = pytest.mark.long


# One in so many epochs compacts them.
REQUESTS_OF_TWO_TABLES_MAX = {"delta": 12, "iceberg": 28}
OF_SCHEMES = {"s3a": "s3", "gs": "gs", "az": "az", "abfs": "az"}


@pytest.fixture(
    scope="module",
    params=["s3a", *(pytest.param(scheme, marks=LONG) for scheme in ("gs", "az", "abfs"))],
)
def bucket(request: pytest.FixtureRequest) -> Iterator[tuple[ServedStore, str]]:
    """A store, and the URL of its bucket."""
    scheme: str = request.param
    with STORES[OF_SCHEMES[scheme]]() as store:
        if scheme == "abfs":
            assert isinstance(store, Azure)
            yield store, store.hadoop_path
        else:
            yield store, f"{scheme}://{BUCKET}"


@pytest.fixture(params=["iceberg", pytest.param("delta", marks=LONG)])
def place(
    bucket: tuple[ServedStore, str], session: SparkSession, request: pytest.FixtureRequest
) -> Iterator[Place]:
    store, url = bucket
    yield Place(session, store, f"{url}/mirrors-{uuid.uuid4().hex}", request.param)
    store.before, store.refuses = nothing, nobody


def updated(number: int, name: str, *, at: int) -> Record:
    return record("UPDATE", [({"Id": str(number)}, {"Name": name}, {})], COLUMNS, at=at)


def deleted(number: int, *, at: int) -> Record:
    return record("DELETE", [({"Id": str(number)}, {}, {})], COLUMNS, at=at)


def names(*ids: int) -> dict[int, str]:
    """Return the rows that inserts() leaves."""
    return {number: f"n{number}" for number in ids}


def test_small_epochs_take_few_requests_and_their_number_stays(place: Place) -> None:
    sink, tasks = place.owner()
    requests: list[int] = []
    for epoch in range(1, 37):
        before = len(place.store.requests)
        tasks.write(epoch, *of_two_tables(epoch))
        requests.append(len(place.store.requests) - before)
    # The first one creates the tables; some compact them, or write a checkpoint of Delta's log.
    assert statistics.median(requests[1:13]) == statistics.median(requests[-12:])
    assert statistics.median(requests) <= REQUESTS_OF_TWO_TABLES_MAX[place.format]
    assert statistics.mean(requests[1:]) <= 50
    assert place.rows(TABLE) == names(*range(2, 74))
    assert place.rows("Keys") == names(*range(1, 37))
    assert place.published(sink, TABLE) == datetime_to_rfc3339(low_watermark(36))
    if place.format == "delta":
        assert place.store.names(f"{place.folder}/{TABLE}/_delta_log/_last_checkpoint")
    assert place.staged() == []


def test_a_new_owner_goes_on_with_updates_and_deletes(place: Place) -> None:
    _, tasks = place.owner()
    tasks.write(1, inserts(1, 2, 3, at=1))
    tasks.write(2, updated(1, "changed", at=2_000_000), deleted(2, at=2_000_001))
    sink, tasks = place.owner()
    assert sink.position(place.spark).complete == low_watermark(2)
    tasks.write(3, deleted(3, at=3_000_000), inserts(4, at=3_000_001))
    tasks.write(4, deleted(9, at=4_000_000))
    assert place.rows(TABLE) == {1: "changed", 4: "n4"}
    assert place.published(sink, TABLE) == datetime_to_rfc3339(low_watermark(4))


def test_an_epoch_that_is_too_large_for_the_driver_is_folded_by_spark(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, tasks = place.owner()
    tasks.write(1, *of_two_tables(1))
    with monkeypatch.context() as patched:
        patched.setattr(managed_tables, "_SMALL_RECORDS_MAX", 1)
        tasks.write(2, *of_two_tables(2))
        assert place.staged() == []
    before = len(place.store.requests)
    tasks.write(3, *of_two_tables(3), updated(2, "changed", at=3))
    # Also of what Spark has committed.
    assert len(place.store.requests) - before < 60
    assert place.rows(TABLE) == names(3, 4, 5, 6, 7) | {2: "changed"}
    assert place.rows("Keys") == names(1, 2, 3)


@pytest.mark.parametrize("rows_max", [20_000, 1], ids=["by the driver", "by Spark"])
def test_large_files_of_tasks_are_staged_and_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch, rows_max: int
) -> None:
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", rows_max)
    _, tasks = place.owner()
    tasks.write(1, *large_records())
    assert [list(place.rows(f"T{number}")) for number in range(4)] == [[1]] * 4
    assert any("_staging" in name for method, name in place.store.requests if method == "PUT")
    assert place.staged() == []


def test_a_former_owner_that_wakes_up_changes_nothing(place: Place) -> None:
    former_sink, former = place.owner()
    former.write(1, *of_two_tables(1))
    sink, successor = place.owner()
    # An epoch that ends elsewhere than the former owner's.
    successor.write(3, *of_two_tables(2), *of_two_tables(3))
    for epoch in (2, 1):
        with pytest.raises(PublishError):
            former.write(epoch, *of_two_tables(epoch))
    assert place.rows(TABLE) == names(*range(2, 8))
    assert place.published(former_sink, TABLE) == datetime_to_rfc3339(low_watermark(3))
    assert sink.position(place.spark).complete == low_watermark(3)


def test_a_new_checkpoint_states_no_low_watermark_that_a_mirror_is_beyond(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    former_sink, former = place.owner()
    former.write(1, *of_two_tables(1))
    former.write(2, inserts(2, at=2, table="Keys"))

    def die(*_: Any) -> None:
        raise PublishError("killed")

    monkeypatch.setattr(former_sink._watermarks, "add", die)
    with pytest.raises(PublishError, match="killed"):
        former.write(3, *of_two_tables(3))
    sink, successor = place.owner()
    begun = sink.position(place.spark)
    assert (begun.complete, begun.begun) == (low_watermark(2), low_watermark(3))
    # Of a new checkpoint Spark's first epoch has the number 0, and no records.
    summary = EpochSummary(0, 0, 0, None, None)
    sink.publish(place.spark, 0, summary, low_watermark(2))
    # The rows are those of epoch 3 already.
    assert place.published(sink, TABLE) == datetime_to_rfc3339(low_watermark(1))
    successor.write(3, *of_two_tables(3))
    assert place.published(sink, TABLE) == datetime_to_rfc3339(low_watermark(3))
    assert place.rows(TABLE) == names(2, 3, 6, 7)


@pytest.mark.parametrize("deletes", ["apply", "mark"])
def test_scan_new_type_former_table_and_history(place: Place, deletes: str) -> None:
    sink, tasks = place.owner(deletes=deletes)
    columns = (Column("Id", "INT64", True), Column("Name", "STRING(MAX)", False))
    sink.begin_scan(place.spark, {TABLE: columns})
    for chunk in (1, 2):
        assert sink.add_scanned(frame(place.spark, [inserts(chunk, at=0)]), chunk, START) == 1
    sink.end_scan(place.spark, 2, START)
    tasks.write(1, updated(1, "changed", at=1), deleted(2, at=2))
    numbers = {"Id": "INT64", "Name": "INT64"}
    tasks.write(2, record("UPDATE", [({"Id": "1"}, {"Name": "7"}, {})], numbers, at=2_000_001))
    assert _present(place.table(TABLE)) == [(1, 7)]
    assert "changed" in place.table(TABLE)["Name_was_string"].to_pylist()
    sink.drop_recreated(RecreatedTables(tables={TABLE: low_watermark(2)}))
    of_new = record("INSERT", [({"Id": "4"}, {"Name": "8"}, {})], numbers, at=3_000_000)
    tasks.write(3, of_new)
    assert _present(place.table(TABLE)) == [(4, 8)]
    sink.drop_recreated(RecreatedTables(columns={(TABLE, "Name"): low_watermark(3)}))
    tasks.write(4, inserts(1, at=4_000_000, table="Keys"))
    assert _present(place.table(TABLE)) == [(4, None)]
    # Another process looks, which owns nothing.
    reader = place.sink(deletes=deletes)
    seen = []
    for epoch in range(5):
        cut = reader.as_of(place.spark, low_watermark(epoch), [TABLE])
        seen.append(_present(place.table(TABLE, cut.tables[0].version)))
    assert seen == [[(1, "n1"), (2, "n2")], [(1, "changed")], [(1, 7)], [(4, 8)], [(4, None)]]
    stated = reader._table(place.spark, TABLE).current_rows()
    assert [(row["Id"], row["Name"]) for row in stated.collect()] == [(4, None)]
    assert place.published(reader, TABLE) == datetime_to_rfc3339(low_watermark(4))


def _present(rows: pa.Table) -> list[tuple[int, Any]]:
    """Return the ids and names of the rows that are not marked as deleted."""
    there = [row for row in rows.to_pylist() if not row.get("_is_deleted")]
    return sorted((row["Id"], row["Name"]) for row in there)


@pytest.mark.parametrize("fault", ["no rights", "no bucket"])
def test_a_store_that_refuses_is_named_at_the_start(place: Place, fault: str) -> None:
    path, options = place.path, place.store.options
    if fault == "no rights":
        place.store.refuses = lambda *_: True
    else:
        path = path.replace(BUCKET, "others")
    sink: Any = make_sink(path, kind="mirror", format=place.format, storage_options=options)
    with pytest.raises(ObjectStoreError, match=r"sink\.storage_options"):
        sink.position(place.spark)
