"""An epoch's transaction leaves the rows that a merge of files does, in each such database."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from slackwater.spark_sink.errors import DatabaseError, PublishError
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.tables.by_transaction.transaction_log import TransactionLog
from slackwater.spark_sink.tables.in_ducklake.address import lake_address
from slackwater.spark_sink.tables.in_ducklake.ducklake_log import DuckLakeLog
from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess
from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.spark_sink.tables.table_changes import MergeId, MergePolicy
from tests.support.merged_mirror import PIPELINE, MergedMirror
from tests.support.merged_tables import (
    AT,
    CLEARED,
    COLUMNS,
    MARKS,
    SCHEMA,
    drawn,
    latest_of,
)
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server

Log = TransactionLog[Any]


@pytest.fixture(scope="module", params=["postgresql", "ducklake"])
def log(
    request: pytest.FixtureRequest,
    new_postgres_url: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Log]:
    folder: Path = tmp_path_factory.mktemp("place")
    place = Disk(folder, str(folder))
    url = new_postgres_url().replace("+psycopg", "")
    log: Log
    if request.param == "postgresql":
        log = PostgresqlLog(url, place, PIPELINE)
    else:
        log = DuckLakeLog(lake_address(str(folder / "lake"), None, {}), place, PIPELINE)
    log.take_over(lambda: None)
    yield log
    log.database.close()
    log.reader.close()


@pytest.mark.parametrize("are_kept", [False, pytest.param(True, marks=pytest.mark.long)])
def test_random_epochs_leave_the_rows_of_a_merge_of_files(log: Log, are_kept: bool) -> None:
    choose = random.Random(5)
    mirror = MergedMirror(log, pa.schema([*SCHEMA, *(MARKS.items() if are_kept else ())]))
    # A lake is slower, and its SQL is the same.
    for _ in range(150 if isinstance(log, PostgresqlLog) else 40):
        policy = MergePolicy(are_kept, choose.choice([None, None, None, CLEARED]))
        is_absent = choose.random() < 0.2
        columns = [
            replace(column, absent_at=AT) if column.name == "B" and is_absent else column
            for column in COLUMNS
        ]
        rows = latest_of(drawn(choose)) if choose.random() < 0.9 else None
        mirror.merge(rows, columns, policy)
        mirror.require_equal()


def test_a_table_without_a_key_has_one_row(log: Log) -> None:
    columns = [column for column in COLUMNS if not column.is_key]
    mirror = MergedMirror(log, pa.schema({"A": pa.string(), "B": pa.string()}), columns)
    for values in ({"A": "x", "B": "y"}, {"A": "z", "B": None}):
        rows = latest_of({1: ("whole", values)}).drop_columns(["Id"])
        mirror.merge(rows, columns, MergePolicy(are_kept=False))
        mirror.require_equal()
    mirror.merge(latest_rows({}, columns), columns, MergePolicy(are_kept=False))
    mirror.require_equal()


def require_key(column: str, mirror: MergedMirror) -> None:
    """Require that PostgreSQL finds rows by a column; a lake has no index."""
    if isinstance(mirror.access, PostgresqlAccess):
        assert mirror.access.key == [column]


@pytest.mark.parametrize("are_kept", [False, True])
def test_a_table_that_is_made_again_with_another_key_is_found_by_it(
    log: Log, are_kept: bool
) -> None:
    mirror = MergedMirror(log, pa.schema([*SCHEMA, *(MARKS.items() if are_kept else ())]))
    policy = MergePolicy(are_kept)
    mirror.merge(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    columns = [replace(column, is_key=column.name == "A") for column in COLUMNS]
    rows = latest_of({1: ("whole", {"A": "x", "B": "y"}), 2: ("whole", {"A": "z", "B": "y"})})
    mirror.merge(rows, columns, replace(policy, cleared_at=CLEARED))
    mirror.require_equal()
    require_key("A", mirror)
    later = latest_of({1: ("whole", {"A": "x", "B": "new"}), 5: ("delete", {})})
    mirror.merge(later.slice(0, 1), columns, policy)
    mirror.require_equal()
    # Rows of a former table are forgotten, and nothing is said of the key.
    mirror.merge(None, (), replace(policy, cleared_at=CLEARED))
    mirror.require_equal()
    require_key("A", mirror)


def test_an_epoch_that_is_there_is_not_merged_again(log: Log) -> None:
    mirror = MergedMirror(log, SCHEMA)
    policy = MergePolicy(are_kept=False)
    mirror.merge(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    [[last]] = log.reader.run("SELECT low_watermark FROM _slackwater")
    with log.committing(last, None, is_stated=True, incomplete=[]):
        rows = latest_of({1: ("delete", {})})
        mirror.access.merge(rows, COLUMNS, MergeId(PIPELINE, last), policy)
    mirror.require_equal()


def test_an_epoch_that_a_hidden_failover_has_lost_is_missed(log: Log) -> None:
    mirror, policy = MergedMirror(log, SCHEMA), MergePolicy(are_kept=False)
    [[before]] = log.reader.run("SELECT low_watermark FROM _slackwater")
    mirror.merge(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    [[last]] = log.reader.run("SELECT low_watermark FROM _slackwater")
    log.database.run("UPDATE _slackwater SET low_watermark = $1", before)
    with pytest.raises(DatabaseError, match="does not have the epoch"):
        mirror.commit(latest_of({2: ("whole", {"A": "x"})}), COLUMNS, policy)
    log.database.run("UPDATE _slackwater SET low_watermark = $1", last)
    mirror.require_equal()


def test_a_former_owner_commits_nothing_more(log: Log) -> None:
    mirror = MergedMirror(log, SCHEMA)
    former = log.owner
    log.owner = "another process"
    try:
        with pytest.raises(PublishError, match="taken the pipeline over"):
            mirror.commit(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, MergePolicy(False))
        with pytest.raises(PublishError, match="taken the pipeline over"):
            mirror.access.rename_column("A", "B")
    finally:
        log.owner = former
    mirror.require_equal()
