"""Commits to an Iceberg table by pyiceberg: in a folder, and in catalogs."""

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.table.update.snapshot import _SnapshotProducer
from pyiceberg.transforms import DayTransform

from slackwater.spark_sink.errors import AsOfTimeError, ObjectStoreError, PublishError
from slackwater.spark_sink.output.iceberg.table_place import TablePlace, catalog_properties
from slackwater.spark_sink.tables import iceberg
from slackwater.spark_sink.tables.iceberg_history import history_of
from tests.support.iceberg_owners import (
    APPLICATION,
    SCHEMA,
    Owner,
    Where,
    before,
    in_database,
    in_folder,
    on_the_test_s_disk,
)
from tests.support.rest_catalog import REST_SERVERS, rest_catalog


@pytest.fixture(scope="module")
def spark_conf_of(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[str], Mapping[str, str]]]:
    """Returns spark.conf for a kind of REST catalog, which runs until the module ends."""
    with ExitStack() as catalogs:

        @cache
        def started(server: str) -> Mapping[str, str]:
            served = rest_catalog(tmp_path_factory.mktemp(server), server=server)
            return catalogs.enter_context(served).spark_conf

        yield started


@pytest.fixture
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Where:
    on_the_test_s_disk(monkeypatch)
    return in_folder(tmp_path)


@pytest.fixture(params=["folder", "jdbc", *REST_SERVERS])
def where(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    spark_conf_of: Callable[[str], Mapping[str, str]],
) -> Where:
    on_the_test_s_disk(monkeypatch)
    if request.param == "folder":
        return in_folder(tmp_path)
    if request.param == "jdbc":
        return in_database(tmp_path)
    name = f"{tmp_path.parent.name}_{tmp_path.name}".replace("-", "_")
    return Where(TablePlace(f"out/{name}", "lake.tables"), spark_conf_of(request.param))


def test_an_epoch_is_committed_once(where: Where) -> None:
    owner = where.owner()
    assert owner.commits.last_version(APPLICATION) is None
    assert owner.add(1)
    assert not owner.add(1)
    again = where.owner()
    assert again.commits.last_version(APPLICATION) == 1
    assert not again.add(1)
    assert again.add(2)
    # Each application counts its own.
    assert again.append(pa.table({"number": [7]}), 1, application="slackwater scan")
    assert not again.append(pa.table({"number": [7]}), 1, application="slackwater scan")
    assert where.numbers() == [1, 2, 7]


def test_the_successor_finds_the_line_that_a_dead_owner_did_not_add_to_the_log(
    where: Where,
) -> None:
    owner = where.owner()
    assert owner.commits.last_line() is None
    for number in (1, 2):
        owner.add(number, line=f"line {number}")
    owner.append(pa.table({"number": [0]}), 1, application="slackwater scan")
    owner.commits.maintain(0.0)
    # However often it was taken over, and whatever has expired, meanwhile.
    for _ in range(3):
        again = where.owner()
        assert again.commits.last_line() == "line 2"
        again.commits.maintain(0.0)


@pytest.mark.parametrize("existing", [0, 2])
@pytest.mark.parametrize("after", [0, 1, 5])
def test_a_former_owner_commits_nothing(where: Where, existing: int, after: int) -> None:
    former = where.owner()
    former.commits.open(SCHEMA, ())
    for number in range(existing):
        former.add(number)
    successor = where.owner()
    for number in range(existing, existing + after):
        assert successor.add(number)
        successor.commits.maintain(0.0)
    # Over and over: a refused commit must not make the former owner an owner again.
    for number in (existing, existing + after, existing + after + 1):
        with pytest.raises(PublishError):
            former.add(number)
    with pytest.raises(PublishError, match="another process has taken the pipeline over"):
        former.add(existing)
    assert successor.add(existing + after)
    assert where.numbers() == list(range(existing + after + 1))


@pytest.mark.parametrize("step", ["new_manifest_output", "commit_table"])
def test_an_owner_that_is_taken_over_within_its_commit_commits_nothing(
    where: Where, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    former = where.owner()
    former.add(1)
    taker: list[Owner] = []
    holder = _SnapshotProducer if step == "new_manifest_output" else type(where.catalog())
    before(monkeypatch, holder, step, lambda: taker.append(where.owner()))
    with pytest.raises(PublishError, match="another process"):
        former.add(2)
    assert where.numbers() == [1]
    assert taker[0].add(2)
    assert where.numbers() == [1, 2]


def test_an_append_goes_on_after_others_commits_and_alterations(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = where.owner()
    for number in (1, 2, 3):
        owner.add(number)

    def others() -> None:
        table = where.table()
        with table.transaction() as transaction:
            transaction.set_properties(color="blue")
        table.append(pa.table({"number": [9], "kind": ["b"]}, SCHEMA))
        where.owner_of_nothing().maintain(0.0)
        with where.table().update_schema() as update:
            update.add_column("later", update._schema.find_field("kind").field_type)

    before(monkeypatch, type(where.catalog()), "commit_table", others)
    owner.add(4)
    owner.add(5)
    assert where.numbers() == [1, 2, 3, 4, 5, 9]
    assert where.table().properties["color"] == "blue"


def test_what_was_committed_is_known_after_others_expired_its_snapshots(where: Where) -> None:
    owner, scanned = where.owner(), pa.table({"number": [7], "kind": ["a"]}, SCHEMA)
    owner.append(scanned, 1, application="slackwater scan")
    owner.add(1, line="line 1")
    where.table().append(pa.table({"number": [9]}))
    _expire_all_but_the_current_snapshot(where)
    owner.commits.refresh()
    assert not owner.add(1)
    again = where.owner()
    assert again.commits.last_line() == "line 1"
    assert not again.add(1)
    assert not again.append(scanned, 1, application="slackwater scan")
    assert again.add(2)
    with pytest.raises(PublishError, match="another process"):
        owner.add(2)
    assert where.numbers() == [1, 2, 7, 9]


def test_a_low_watermark_whose_snapshot_is_gone_is_not_read_as_a_table_without_rows(
    in_a_folder: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "_PUBLISHED_S_MAX", 0)
    where = in_a_folder
    owner, low_watermark = where.owner(), {"slackwater.low_watermark": "2026-01-02T03:04:05Z"}
    owner.add(1)
    owner.commits.set_properties(lambda: {**owner.commits.version_properties, **low_watermark})
    where.table().append(pa.table({"number": [9]}))
    _expire_all_but_the_current_snapshot(where)
    spark, path = where.spark, where.place.path
    assert iceberg.Iceberg().stated(spark, path) == "2026-01-02T03:04:05Z"
    with pytest.raises(AsOfTimeError, match="the snapshot of its low watermark is not there"):
        iceberg.Iceberg().read_at_watermark(spark, path)


def test_what_a_table_was_rolled_back_from_counts_no_more(in_a_folder: Where) -> None:
    where = in_a_folder
    owner = where.owner()
    owner.add(1)
    where.table().append(pa.table({"number": [9]}))
    others = where.table().metadata.current_snapshot_id
    assert others is not None
    owner.commits.refresh()
    owner.add(2)
    where.table().manage_snapshots().rollback_to_snapshot(others).commit()
    assert where.owner().commits.last_version(APPLICATION) == 1
    where.table().manage_snapshots().rollback_to_snapshot(others).commit()
    _expire_all_but_the_current_snapshot(where)
    with pytest.raises(ObjectStoreError, match="was rolled back to a time before all commits"):
        where.owner()


def test_a_history_that_was_cut_off_is_not_taken_for_a_whole_one(where: Where) -> None:
    owner = where.owner()
    for number in (1, 2, 3):
        owner.add(number)
    _expire_all_but_the_current_snapshot(where)
    history = history_of(where.table(), APPLICATION)
    assert not history.is_whole
    assert len(history.commits) == 1


def test_chunks_of_a_rescan_do_not_hide_what_the_pipeline_committed(in_a_folder: Where) -> None:
    where = in_a_folder
    owner, scanned = where.owner(), pa.table({"number": [7], "kind": ["a"]}, SCHEMA)
    owner.add(1, line="line 1")
    for chunk in range(20):
        owner.append(scanned, chunk, application=f"slackwater scan {chunk}")
    _expire_all_but_the_current_snapshot(where)
    again = where.owner()
    assert again.commits.last_line() == "line 1"
    assert again.commits.last_version(APPLICATION) == 1
    assert not again.append(scanned, 15, application="slackwater scan 15")


def test_no_snapshot_is_removed_if_others_may_have_its_files(in_a_folder: Where) -> None:
    where = in_a_folder
    owner = where.owner()
    for number in (1, 2, 3):
        owner.add(number)
    where.table().transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    where.owner_of_nothing().maintain(0.0)
    assert len(where.table().metadata.snapshots) >= 4
    where.table().transaction().set_properties({"gc.enabled": "true"}).commit_transaction()
    where.owner_of_nothing().maintain(0.0)
    assert len(where.table().metadata.snapshots) < 4


def test_a_snapshot_with_the_same_rows_has_the_published_low_watermark(where: Where) -> None:
    owner = where.owner()
    owner.add(1)
    owner.commits.set_properties(lambda: owner.commits.version_properties)
    for _ in range(2):
        again = where.owner()
        metadata = where.table().metadata
        assert metadata.properties["slackwater.snapshot"] == str(metadata.current_snapshot_id)
    again.add(2)
    metadata = where.table().metadata
    assert metadata.properties["slackwater.snapshot"] != str(metadata.current_snapshot_id)


def _expire_all_but_the_current_snapshot(where: Where) -> None:
    metadata = where.table().metadata
    old = {s.snapshot_id for s in metadata.snapshots} - {metadata.current_snapshot_id}
    if old:
        where.table().maintenance.expire_snapshots().by_ids(list(old)).commit()


@pytest.mark.parametrize("is_made", [True, False])
def test_a_commit_whose_answer_is_lost_lands_once(
    where: Where, monkeypatch: pytest.MonkeyPatch, is_made: bool
) -> None:
    owner, catalog = where.owner(), type(where.catalog())
    owner.add(1)
    commit = catalog.commit_table

    def lost(*args: Any) -> None:
        if is_made:
            commit(*args)
        raise CommitStateUnknownException

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", lost)
        with pytest.raises(PublishError):
            owner.add(2)
    assert where.numbers() == ([1, 2] if is_made else [1])
    assert owner.add(2) != is_made
    assert owner.add(3)
    assert where.numbers() == [1, 2, 3]


def test_of_two_creators_of_a_table_the_second_fails(
    where: Where, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = where.owner(), where.owner()
    before(monkeypatch, type(where.catalog()), "create_table", lambda: first.add(1))
    with pytest.raises(PublishError):
        second.add(1)
    second.take_over()
    assert not second.add(1)
    assert second.add(2)
    with pytest.raises(PublishError):
        first.add(2)
    assert where.numbers() == [1, 2]


def test_columns_come_to_tables_and_to_their_structs_and_old_rows_lack_them(where: Where) -> None:
    small = pa.schema({"number": pa.int64(), "after": pa.struct({"Id": pa.int64()})})
    owner = where.owner()
    owner.append(pa.table({"number": [1], "after": [{"Id": 1}]}, small), 1)
    after = pa.struct({"Name": pa.list_(pa.string())})
    owner.commits.add_columns(pa.schema({"after": after, "before": pa.struct({"Id": pa.int64()})}))
    large = pa.schema(
        {
            "number": pa.int64(),
            "after": pa.struct({"Id": pa.int64(), "Name": pa.list_(pa.string())}),
            "before": pa.struct({"Id": pa.int64()}),
        }
    )
    rows = {"number": [2], "after": [{"Id": 2, "Name": ["a"]}], "before": [{"Id": 1}]}
    owner.append(pa.table(rows, large), 2)
    owner.append(pa.table({"number": [3]}), 3)
    expected = [
        {"number": 1, "after": {"Id": 1, "Name": None}, "before": None},
        {"number": 2, "after": {"Id": 2, "Name": ["a"]}, "before": {"Id": 1}},
        {"number": 3, "after": None, "before": None},
    ]
    for _ in range(2):
        assert where.table().scan().to_arrow().sort_by("number").to_pylist() == expected
        owner.commits.maintain(0.0)
    assert len(list(where.table().scan().plan_files())) == 1


def test_tables_that_ask_more_of_their_rows_are_refused(where: Where) -> None:
    owner = where.owner()
    owner.append(pa.table({"number": [1], "at": [dt.datetime.now(dt.UTC)]}), 1)
    with pytest.raises(ObjectStoreError, match="has the columns number, at timestamptz; this"):
        owner.append(pa.table({"number": [2], "at": ["now"]}), 2)
    with where.table().update_spec() as update:
        update.add_field("at", DayTransform(), "day")
    owner.commits.refresh()
    with pytest.raises(ObjectStoreError, match="it has the partitions day: day"):
        owner.append(pa.table({"number": [2]}), 2)


def test_a_catalog_is_reached_as_spark_conf_says() -> None:
    key = "spark.sql.catalog.lake"

    def properties(**own: str) -> dict[str, Any]:
        conf = {f"{key}.{name.replace('_', '-')}": value for name, value in own.items()}
        return catalog_properties("lake", {**conf, "spark.sql.catalog.lake2.type": "hive"})

    made = properties(type="rest", uri="https://c", io_impl="a.B", warehouse="w")
    assert made.pop("py-io-impl").endswith("StoreIO")
    assert made.pop("pool_pre_ping") == "true"
    assert made == {"type": "rest", "uri": "https://c", "warehouse": "w"}
    by_class = properties(catalog_impl="org.apache.iceberg.rest.RESTCatalog", uri="https://c")
    assert by_class["type"] == "rest"
    database = catalog_properties(
        "lake",
        {
            f"{key}.type": "jdbc",
            f"{key}.uri": "jdbc:postgresql://host:5432/lake",
            f"{key}.jdbc.user": "me",
            f"{key}.jdbc.password": "p@s/%41",
        },
    )
    assert (database["type"], database["uri"]) == (
        "sql",
        "postgresql+psycopg://me:p%40s%2F%2541@host:5432/lake",
    )
    google = catalog_properties(
        "lake",
        {
            f"{key}.type": "rest",
            f"{key}.rest.auth.type": "org.apache.iceberg.gcp.auth.GoogleAuthManager",
        },
    )
    assert google["auth"] == {"type": "google"}
    for other in ({"type": "hadoop"}, {"catalog_impl": "com.example.Own"}, {}):
        with pytest.raises(ObjectStoreError, match=r"written to glue, hive, jdbc, rest"):
            properties(**other)
