"""A DuckLake is maintained beside its epochs, has one owner, and says what is wrong with it."""

import itertools
import math
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from slackwater.spark_sink.errors import DuckLakeError, PublishError
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.in_ducklake import ducklake_log
from slackwater.spark_sink.tables.in_ducklake import lake as lake_module
from slackwater.spark_sink.tables.in_ducklake.address import lake_address
from slackwater.spark_sink.tables.in_ducklake.ducklake_access import DuckLakeAccess
from slackwater.spark_sink.tables.in_ducklake.ducklake_log import DuckLakeLog
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.spark_sink.tables.table_changes import SOURCE_TABLE_PROPERTY, MergePolicy
from tests.support.ducklakes import Lake
from tests.support.merged_mirror import PIPELINE, MergedMirror, next_epoch
from tests.support.merged_tables import COLUMNS, SCHEMA, drawn, latest_of
from tests.support.object_stores import azure, cloud_storage, s3
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server

POLICY = MergePolicy(are_kept=False)
ONE = latest_of({1: ("whole", {"A": "x"})})


def log_of(folder: Path, catalog: str | None = None) -> DuckLakeLog:
    address = lake_address(str(folder / "lake"), catalog, {})
    return DuckLakeLog(address, Disk(folder, str(folder)), PIPELINE)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[DuckLakeLog]:
    log = log_of(tmp_path)
    log.take_over(lambda: None)
    yield log
    log.database.close()
    log.reader.close()


def again(log: DuckLakeLog) -> DuckLakeLog:
    """Have the next round of maintenance be due."""
    log._cleaned_at = -math.inf
    return log


def data_files(folder: Path) -> set[Path]:
    return set((folder / "lake" / "data_files").rglob("*.parquet"))


def test_a_lake_is_maintained_while_epochs_land(log: DuckLakeLog, tmp_path: Path) -> None:
    choose, mirror, stop = random.Random(8), MergedMirror(log, SCHEMA), threading.Event()
    failures = list[Exception]()

    def maintain() -> None:
        try:
            while not stop.is_set():
                again(log).maintain(TableAddress(None, mirror.name), 0.0)
        except (DuckLakeError, PublishError) as error:
            failures.append(error)

    thread = threading.Thread(target=maintain)
    thread.start()
    try:
        for _ in range(20):
            mirror.merge(latest_of(drawn(choose)), COLUMNS, POLICY)
            mirror.require_equal()
    finally:
        stop.set()
        thread.join()
    assert not failures
    again(log).maintain(TableAddress(None, mirror.name), 0.0)
    mirror.require_equal()
    lake = Lake.in_folder(tmp_path / "lake")
    assert len(lake.rows("(FROM ducklake_snapshots('lake'))")) < 10
    # Readers of a version that has gone have a day to end.
    log.database.run(
        "UPDATE __ducklake_metadata_lake.ducklake_files_scheduled_for_deletion"
        " SET schedule_start = '2026-01-31 09:00:00+00'"
    )
    before = data_files(tmp_path)
    again(log).maintain(TableAddress(None, mirror.name), 0.0)
    assert len(data_files(tmp_path)) < min(10, len(before))
    mirror.require_equal()


def test_files_that_no_snapshot_has_go_after_a_day(log: DuckLakeLog, tmp_path: Path) -> None:
    mirror = MergedMirror(log, SCHEMA)
    many = latest_of({number: ("whole", {"A": "x"}) for number in range(100)})
    mirror.merge(many, COLUMNS, POLICY)
    known = data_files(tmp_path)

    def fail() -> None:
        with log.committing(next_epoch(), None, is_stated=False, incomplete=[]):
            mirror.access.append_rows(many.select(SCHEMA.names), None)  # type: ignore[arg-type]
            raise PublishError("somewhere else")

    with pytest.raises(PublishError, match="somewhere else"):
        fail()
    [orphan] = data_files(tmp_path) - known
    # Of an upload whose process was killed.
    left = orphan.with_name(f"{orphan.name}#1")
    left.write_bytes(b"PAR1")
    log.maintain(TableAddress(None, mirror.name), None)
    assert orphan.exists()
    assert left.exists()
    before = time.time() - 90_000
    for file in (*data_files(tmp_path), left):
        os.utime(file, (before, before))
    again(log).maintain(TableAddress(None, mirror.name), None)
    assert not orphan.exists()
    assert not left.exists()
    mirror.require_equal()


def test_an_epoch_waits_for_one_step_of_maintenance(
    log: DuckLakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror, run, steps = MergedMirror(log, SCHEMA), log.database.run, list[str]()
    mirror.merge(ONE, COLUMNS, POLICY)
    epoch = threading.Thread(target=lambda: mirror.merge(ONE, COLUMNS, POLICY))

    def noted(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if statement.startswith("CALL ducklake_"):
            if not steps:
                epoch.start()
                while log._turn.acquire(blocking=False):
                    log._turn.release()
                    time.sleep(0.01)
            steps.append("maintenance")
        elif statement == "COMMIT":
            steps.append("epoch")
        return run(statement, *values)

    monkeypatch.setattr(log.database, "run", noted)
    log.maintain(TableAddress(None, mirror.name), None)
    epoch.join()
    assert steps[:3] == ["maintenance", "epoch", "maintenance"]


def test_files_are_merged_one_by_one_while_epochs_add_others(
    log: DuckLakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, merged = log.database.run, list[list[tuple[Any, ...]]]()
    access = DuckLakeAccess(log, TableAddress("named schema", "typed changes"))
    schema = pa.schema([("number", pa.int64()), ("text", pa.string())])
    access.make(schema, {SOURCE_TABLE_PROPERTY: "typed"}, [])
    numbers = itertools.count()

    def add_a_file() -> None:
        rows = [{"number": next(numbers), "text": os.urandom(5_000).hex()}]
        with log.committing(next_epoch(), None, is_stated=True, incomplete=[]):
            access.append_rows(pa.Table.from_pylist(rows, schema), None)  # type: ignore[arg-type]

    def noted(statement: str, *values: Any) -> list[tuple[Any, ...]]:
        if not statement.startswith("CALL ducklake_merge_adjacent_files('lake', 'typed"):
            return run(statement, *values)
        assert len(merged) < 20, "the round does not end"
        add_a_file()
        merged.append(run(statement, *values))
        return merged[-1]

    run("CALL lake.set_option('target_file_size', '30KB')")
    for _ in range(12):
        add_a_file()
    monkeypatch.setattr(log.database, "run", noted)
    log.maintain(TableAddress("named schema", "typed changes"), None)
    assert len(merged) > 2
    assert all(len(files) <= 1 for files in merged)
    read = log.reader.run('SELECT number FROM "named schema"."typed changes" ORDER BY number')
    assert [number for (number,) in read] == list(range(next(numbers)))


@pytest.mark.parametrize("catalog", ["sqlite", pytest.param("postgresql", marks=pytest.mark.long)])
def test_a_few_changes_in_typed_columns_are_read_as_they_were_written(
    catalog: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = None
    if catalog == "postgresql":
        url = request.getfixturevalue("new_postgres_url")().replace("+psycopg", "")
    log = log_of(tmp_path, url)
    log.take_over(lambda: None)
    texts = ["", "it's", 'a "b"', "NULL", "{'a': 1}", "[x, y]", "back\\slash", "é, ü"]
    after = [
        {"Text": text, "Texts": [text, None, *texts], "Time": datetime(2026, 1, 31, tzinfo=UTC)}
        for text in texts
    ]
    fields = {"Text": pa.string(), "Texts": pa.list_(pa.string())}
    kind = pa.struct({**fields, "Time": pa.timestamp("us", "UTC")}.items())
    rows = pa.table({"number": range(len(after)), "after": pa.array(after, kind)})
    tables = [TableAddress("named schema", f"typed {number}") for number in range(4)]
    several = [DuckLakeAccess(log, table) for table in tables]
    for access in several:
        access.make(rows.schema, {SOURCE_TABLE_PROPERTY: "typed"}, [])
    for number in range(rows.num_rows):
        with (
            log.committing(next_epoch(), None, is_stated=True, incomplete=[]),
            ThreadPoolExecutor(len(several)) as pool,
        ):
            row = rows.slice(number, 1)
            list(pool.map(lambda access: access.append_rows(row, None), several))  # noqa: B023
    reader = Lake(f"postgres:{url}") if url else Lake.in_folder(tmp_path / "lake")
    for _ in range(2):
        for table in tables:
            read = reader.rows(table.quoted)
            assert sorted(read, key=lambda row: row["number"]) == rows.to_pylist()
            again(log).maintain(table, 0.0)
    log.database.close()
    log.reader.close()


@pytest.mark.parametrize(
    "zone",
    [
        "Asia/Tokyo",
        *(pytest.param(z, marks=pytest.mark.long) for z in ("UTC", "America/Los_Angeles")),
    ],
)
def test_a_version_can_be_read_for_as_long_as_it_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, zone: str
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    log = log_of(tmp_path)
    log.take_over(lambda: None)
    mirror, lake = MergedMirror(log, SCHEMA), Lake.in_folder(tmp_path / "lake")
    for _ in range(3):
        many = latest_of({number: ("whole", {"A": "x"}) for number in range(100)})
        mirror.merge(many, COLUMNS, POLICY)
    files, snapshots = data_files(tmp_path), "(FROM ducklake_snapshots('lake'))"
    before = len(lake.rows(snapshots))
    log.maintain(TableAddress(None, mirror.name), 3_600.0)
    assert len(lake.rows(snapshots)) >= before
    assert files <= data_files(tmp_path)
    log.database.run(
        "UPDATE __ducklake_metadata_lake.ducklake_snapshot SET snapshot_time ="
        " (now() - INTERVAL '61 minutes')::text WHERE snapshot_id < 4"
    )
    again(log).maintain(TableAddress(None, mirror.name), 3_600.0)
    kept = {row["snapshot_id"] for row in lake.rows(snapshots)}
    assert min(kept) == 4
    for one in (log.database, log.reader):
        one.close()
    monkeypatch.undo()
    time.tzset()


def test_what_does_not_fit_into_memory_is_no_other_lakes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lake_module, "_MEMORY_MAX", "24MB")
    logs = [log_of(tmp_path / name) for name in "ab"]
    for log in logs:
        log.take_over(lambda: None)

    def made(log: DuckLakeLog, factor: int) -> None:
        log.database.run(
            f"CREATE TEMP TABLE large AS SELECT n * {factor} AS i, repeat('x', 200) || n AS x"
            " FROM range(300000) AS r(n)"
        )

    made(logs[0], 1)
    made(logs[1], 7)

    def require_same(log: DuckLakeLog, factor: int) -> None:
        same = f"x = repeat('x', 200) || (i // {factor})"
        rows = log.database.run(f"SELECT count(*), bool_and({same}) FROM large")
        assert rows == [(300_000, True)]

    require_same(logs[0], 1)
    require_same(logs[1], 7)
    logs[1].database.close()
    require_same(logs[0], 1)
    logs[0].database.close()


def test_a_new_catalog_is_refused_beside_the_files_of_another(
    log: DuckLakeLog, tmp_path: Path
) -> None:
    many = latest_of({number: ("whole", {"A": "x"}) for number in range(100)})
    MergedMirror(log, SCHEMA).merge(many, COLUMNS, POLICY)
    for _ in range(2):
        other = log_of(tmp_path, f"sqlite:///{tmp_path}/new.sqlite")
        with pytest.raises(DuckLakeError, match="has files, and the catalog is a new one"):
            other.take_over(lambda: None)


@pytest.mark.parametrize(
    "served", [s3, *(pytest.param(of, marks=pytest.mark.long) for of in (cloud_storage, azure))]
)
def test_a_lake_has_its_files_in_any_object_store(
    tmp_path: Path, served: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with served() as store:  # type: ignore[attr-defined]
        address = lake_address(
            f"{store.path}/lake", f"sqlite:///{tmp_path}/c.sqlite", store.options
        )
        log = DuckLakeLog(address, Disk(tmp_path, str(tmp_path)), PIPELINE)
        log.take_over(lambda: None)
        mirror = MergedMirror(log, SCHEMA)
        for first in (0, 50):
            rows = {number: ("whole", {"A": "x"}) for number in range(first, first + 100)}
            mirror.merge(latest_of(rows), COLUMNS, POLICY)
        store.requests.clear()
        for number in (7, 8):
            mirror.merge(latest_of({number: ("delete", {})}), COLUMNS, POLICY)
        # Nothing is asked of folders, and once about each of the two files.
        assert all(name.endswith(".parquet") for _, name in store.requests)
        assert [method for method, _ in store.requests].count("HEAD") <= 2
        log.maintain(TableAddress(None, mirror.name), 0.0)
        mirror.require_equal()
        [[stated]] = log.reader.run(
            "SELECT value FROM __ducklake_metadata_lake.ducklake_metadata WHERE key = 'data_path'"
        )
        assert stated == f"{store.path}/lake/data_files/"
        # An orphan goes, whatever its age, and nothing is asked about the other files.
        monkeypatch.setattr(ducklake_log, "_DAY_S", -3_600)
        (tmp_path / "orphans").mkdir()
        (tmp_path / "orphans" / "orphan.parquet").write_bytes(b"PAR1")
        store.upload(tmp_path / "orphans", "lake/data_files/main")
        before = store.names("lake/data_files/")
        store.requests.clear()
        again(log).maintain(TableAddress(None, mirror.name), None)
        assert "HEAD" not in {method for method, _ in store.requests}
        after = store.names("lake/data_files/")
        assert set(before) - set(after) == {"lake/data_files/main/orphan.parquet"}
        mirror.require_equal()
        log.database.close()
        log.reader.close()


def test_a_lake_whose_files_are_elsewhere_is_refused(log: DuckLakeLog, tmp_path: Path) -> None:
    MergedMirror(log, SCHEMA).merge(ONE, COLUMNS, POLICY)
    other = log_of(tmp_path / "other", f"sqlite:///{tmp_path}/lake/catalog.sqlite")
    with pytest.raises(DuckLakeError, match="the lake has its files in") as refused:
        other.take_over(lambda: None)
    assert refused.value.hint.startswith("Set sink.path to the folder above them")


def test_a_successor_ends_the_commit_of_an_owner_that_is_frozen_in_it(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres_url().replace("+psycopg", "")
    former, successor = log_of(tmp_path, url), log_of(tmp_path, url)
    former.take_over(lambda: None)
    # As a commit does that has come so far.
    insert = (
        "INSERT INTO ducklake_snapshot SELECT snapshot_id + 1, snapshot_time, schema_version,"
        " next_catalog_id, next_file_id FROM ducklake_snapshot ORDER BY 1 DESC LIMIT 1"
    )
    [[name]] = former.database.run(
        "FROM postgres_query('__ducklake_metadata_lake', 'SELECT current_setting("
        "''application_name'')')"
    )
    frozen = Database(url, name)
    with closing(frozen), suppress(PublishError), frozen.transaction():
        frozen.run(insert)
        assert successor.take_over(lambda: None) is None
    with successor.committing(next_epoch(), None, is_stated=True, incomplete=[]):
        pass
    for one in (former, successor):
        one.database.close()


@pytest.mark.parametrize(
    ("statements", "says"),
    [((), None), (("CREATE ROLE {}", "ALTER DATABASE {} SET role = {}"), "permission denied")],
    ids=["right", "no right"],
)
def test_check_names_a_right_that_the_catalog_lacks_and_makes_nothing(
    new_postgres_url: Callable[[], str], tmp_path: Path, statements: tuple[str, ...], says: str
) -> None:
    url = new_postgres_url().replace("+psycopg", "")
    with closing(Database(url, "tests")) as admin:
        for statement in statements:
            admin.run(statement.replace("{}", urlsplit(url).path.strip("/")))
        log = log_of(tmp_path, url)
        if says is None:
            log.check()
        else:
            with pytest.raises((DuckLakeError, PublishError), match=says):
                log.check()
        assert admin.run("SELECT relname FROM pg_class WHERE relname LIKE '%slackwater%'") == []


def test_a_catalog_that_is_not_there_is_the_users_mistake_and_a_server_is_the_worlds(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres_url().replace("+psycopg", "").replace("/test_", "/no_")
    with pytest.raises(DuckLakeError, match="does not exist"):
        log_of(tmp_path, url).check()
    with pytest.raises(PublishError, match="Connection refused"):
        log_of(tmp_path, "postgresql://127.0.0.1:1/x").check()
    with pytest.raises(DuckLakeError, match="there is no lake with the catalog"):
        log_of(tmp_path).reader.run("SELECT 1")
    assert not (tmp_path / "lake").exists()
