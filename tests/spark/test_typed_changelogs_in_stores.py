"""Typed changelogs in an object store: neither a connector of Spark's nor Delta's jar is needed."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import BadRecordError, PublishError
from slackwater.spark_sink.output.object_store import open_object_store, read
from slackwater.spark_sink.sinks import managed_tables
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess
from tests.support.epoch_rows import (
    START,
    Mods,
    frame,
    inserts,
    large_records,
    low_watermark,
    of_two_tables,
    record,
    require_one_owner,
    write,
)
from tests.support.object_stores import OTHERS, STORES, ServedStore
from tests.support.tables_in_stores import TablesInStore

TABLE = "sales.Orders"
REQUESTS_OF_AN_EPOCH_AND_TABLE_MAX = 20


class Place(TablesInStore):
    """A folder with typed changelogs."""

    kind = "changelogs"

    def ids(self, name: str = TABLE) -> list[int]:
        rows = self.table(name)
        ids: list[int] = sorted(pc.struct_field(rows["key"], "Id").to_pylist())
        return ids


@pytest.fixture(scope="module", params=["s3", *OTHERS])
def store(request: pytest.FixtureRequest) -> Iterator[ServedStore]:
    with STORES[request.param]() as served:
        yield served


@pytest.fixture(params=["delta", pytest.param("iceberg", marks=pytest.mark.long)])
def place(session: SparkSession, store: ServedStore, request: pytest.FixtureRequest) -> Place:
    return Place(session, store, f"{store.path}/{uuid.uuid4().hex}", request.param)


def test_one_owner_appends_each_epoch_once(place: Place) -> None:
    require_one_owner(place.spark, place.sink(), place.sink())
    assert place.ids() == [2, 3, 4, 5, 6, 7]
    assert place.ids("Keys") == [1, 2, 3]


def test_a_small_epoch_costs_few_requests_and_their_number_stays(place: Place) -> None:
    _, tasks = place.owner()
    requests = []
    for epoch in range(1, 41):
        before = len(place.store.requests)
        tasks.write(epoch, *of_two_tables(epoch))
        requests.append(len(place.store.requests) - before)
    # The first one creates the tables; some write a checkpoint of Delta's log.
    of_two = 2 * REQUESTS_OF_AN_EPOCH_AND_TABLE_MAX
    assert max(requests[1:28]) <= of_two, requests
    assert max(requests[33:]) <= of_two, requests
    assert place.ids("Keys") == list(range(1, 41))
    assert place.staged() == []


@pytest.mark.parametrize("records_max", [20_000, 0], ids=["by the driver", "by tasks"])
def test_large_files_of_tasks_are_read_and_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch, records_max: int
) -> None:
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", records_max)
    _, tasks = place.owner()
    tasks.write(1, *large_records())
    tasks.write(2, *large_records())
    assert [place.ids(f"T{number}") for number in range(4)] == [[1, 1]] * 4
    assert place.staged() == []


def test_columns_come_and_a_bad_value_is_set_aside(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By tasks; what the driver makes of records is in tests/spark/test_typed_changelog.py.
    monkeypatch.setattr(managed_tables, "_SMALL_RECORDS_MAX", 0)
    sink, _ = place.owner(bad_records="dead_letter")
    write(place.spark, sink, 1, inserts(1, at=1))
    columns = {"Id": "INT64", "Name": "STRING", "Fee": "INT64"}
    mods: Mods = [({"Id": str(n)}, {"Fee": fee}, {}) for n, fee in enumerate(["7", "x", "8"], 2)]
    bad = record("INSERT", mods, columns, at=2)
    strict, _ = place.owner()
    with pytest.raises(BadRecordError, match="column Fee is not of"):
        write(place.spark, strict, 2, bad)
    for _ in range(2):
        sink, _ = place.owner(bad_records="dead_letter")
        write(place.spark, sink, 2, bad)
    rows = place.table(TABLE).sort_by("commit_timestamp")
    assert [(row["key"]["Id"], row["after"]["Fee"]) for row in rows.to_pylist()] == [
        (1, None),
        (2, 7),
        (4, 8),
    ]
    objects = open_object_store(place.path, place.store.direct_options)
    names = [item["path"] for page in objects.list("_dead_letters/") for item in page]
    (letter,) = (json.loads(read(objects, name) or b"") for name in names)
    assert (letter["key"], letter["bad_columns"]) == ('{"Id": "3"}', ["Fee"])


def test_a_scan_goes_on_after_a_kill(place: Place) -> None:
    columns = (Column("Id", "INT64", True), Column("Name", "STRING(MAX)", False))
    for chunks in (2, 3):
        sink, _ = place.owner()
        sink.begin_scan(place.spark, {TABLE: columns, "Empty": columns})
        for chunk in range(chunks):
            scanned = frame(place.spark, [inserts(chunk, at=0)])
            assert sink.add_scanned(scanned, chunk, START) == 1
    sink.end_scan(place.spark, 3, START)
    write(place.spark, sink, 1, inserts(7, at=1))
    assert place.ids() == [0, 1, 2, 7]
    assert place.table("Empty").num_rows == 0
    assert place.owner()[0].position(place.spark).complete == low_watermark(1)


def test_a_former_owner_writes_nothing_to_a_table_that_it_creates(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The former one is frozen at its creation, while its successor has found no table to fence."""
    former, successor = place.sink(), place.sink()
    former.position(place.spark)
    create = DriverAccess.create
    stopped: list[bool] = []

    def after_the_take_over(self: DriverAccess, *args: Any) -> None:
        if not stopped:
            stopped.append(True)
            successor.position(place.spark)
        create(self, *args)

    monkeypatch.setattr(DriverAccess, "create", after_the_take_over)
    # All of the epoch is in the driver's memory by then.
    with pytest.raises(PublishError, match="staged is not there"):
        write(place.spark, former, 1, inserts(1, at=1))
    assert place.ids() == []
    with pytest.raises(PublishError, match=r"already exists|at the same time"):
        write(place.spark, successor, 2, inserts(1, at=1), inserts(2, at=2))
    # As the pipeline does then.
    assert successor.position(place.spark).complete is None
    write(place.spark, successor, 2, inserts(1, at=1), inserts(2, at=2))
    with pytest.raises(PublishError):
        write(place.spark, former, 2, inserts(2, at=2))
    assert place.ids() == [1, 2]
