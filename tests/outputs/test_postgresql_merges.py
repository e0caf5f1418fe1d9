"""A transaction in PostgreSQL leaves the rows that a merge of files does."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import pytest

from slackwater.spark_sink.errors import PostgresqlError, PublishError
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.spark_sink.tables.in_postgresql.postgresql_access import PostgresqlAccess
from slackwater.spark_sink.tables.in_postgresql.postgresql_log import PostgresqlLog
from slackwater.spark_sink.tables.table_changes import MergeId, MergePolicy
from tests.support.epoch_rows import low_watermark
from tests.support.merged_mirror import PIPELINE, MergedMirror, next_epoch
from tests.support.merged_tables import (
    COLUMNS,
    SCHEMA,
    latest_of,
)
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server


@pytest.fixture(scope="module")
def log(
    new_postgres_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresqlLog]:
    folder: Path = tmp_path_factory.mktemp("place")
    url = new_postgres_url().replace("+psycopg", "")
    log = PostgresqlLog(url, Disk(folder, str(folder)), PIPELINE)
    log.take_over(lambda: None)
    yield log
    log.database.close()
    log.reader.close()


@pytest.mark.parametrize(
    ("rows", "says", "hint"),
    [
        ({1: ("whole", {"A": "a\0b"})}, "invalid byte sequence", "PostgreSQL has no U+0000"),
        ({1: ("whole", {"A": "x"})}, "foreign key", "Drop the foreign key"),
    ],
)
def test_what_the_database_refuses_is_named_and_nothing_of_the_epoch_is_there(
    log: PostgresqlLog, rows: Any, says: str, hint: str
) -> None:
    mirror = MergedMirror(log, SCHEMA)
    if says == "foreign key":
        log.database.run('CREATE TABLE IF NOT EXISTS others ("A" text PRIMARY KEY)')
        log.database.run(
            f'ALTER TABLE {mirror.access.name} ADD FOREIGN KEY ("A") REFERENCES others'
        )
    other = MergedMirror(log, SCHEMA)
    policy, at = MergePolicy(are_kept=False), next_epoch()
    merge_id = MergeId(PIPELINE, at)

    def commit() -> None:
        with log.committing(at, None, is_stated=False, incomplete=[]):
            good = latest_of({1: ("whole", {"A": "x"})})
            other.access.merge(good, COLUMNS, merge_id, policy)
            mirror.access.merge(latest_of(rows), COLUMNS, merge_id, policy)

    with pytest.raises(PostgresqlError, match=says) as refused:
        commit()
    assert refused.value.message.startswith(mirror.access.name)
    assert refused.value.hint.startswith(hint)
    other.require_equal()
    mirror.require_equal()


def test_a_row_that_changes_stays_on_its_page_for_which_no_index_is_written(
    log: PostgresqlLog,
) -> None:
    mirror = MergedMirror(log, SCHEMA)
    pages = f'SELECT "Id", (ctid::text::point)[0] FROM {mirror.access.name} ORDER BY "Id"'
    policy = MergePolicy(are_kept=False)
    rows = {n: ("whole", {"A": "a" * 100, "B": "b"}) for n in range(1_000)}
    mirror.commit(latest_of(rows), COLUMNS, policy)
    before = log.database.run(pages)
    assert before[-1][1] > before[0][1]
    some = {n: ("whole", {"A": "c" * 100, "B": "b"}) for n in range(0, 1_000, 20)}
    mirror.commit(latest_of(some), COLUMNS, policy)
    assert log.database.run(pages) == before
    PostgresqlAccess(log, TableAddress(None, "own")).make(SCHEMA, {"fillfactor": "70"}, COLUMNS)
    own = log.database.run("SELECT reloptions FROM pg_class WHERE relname = 'own'")
    assert own == [(["fillfactor=70"],)]


def test_an_epoch_may_change_tables_in_any_order_if_foreign_keys_are_deferred(
    log: PostgresqlLog,
) -> None:
    parent, child = MergedMirror(log, SCHEMA), MergedMirror(log, SCHEMA)
    key = f'FOREIGN KEY ("Id") REFERENCES {parent.access.name} ("Id")'
    deferred = "DEFERRABLE INITIALLY DEFERRED"
    log.database.run(f"ALTER TABLE {child.access.name} ADD {key} {deferred}")
    at, rows = next_epoch(), latest_of({1: ("whole", {"A": "x"})})
    with log.committing(at, None, is_stated=False, incomplete=[]):
        for mirror in (child, parent):
            merge_id = MergeId(PIPELINE, at)
            mirror.access.merge(rows, COLUMNS, merge_id, MergePolicy(are_kept=False))
    assert log.reader.run(f"SELECT COUNT(*) FROM {child.access.name}") == [(1,)]


@pytest.mark.parametrize(
    ("statements", "says", "hint"),
    [
        ((), None, ""),
        (
            ("ALTER DATABASE {} SET default_transaction_read_only = on",),
            "is a standby, or the database is read-only",
            "Name the primary server",
        ),
        (
            ("CREATE ROLE {}", "ALTER DATABASE {} SET role = {}"),
            "permission denied for schema public",
            "Grant the role CREATE",
        ),
    ],
    ids=["right", "standby", "no right"],
)
def test_check_names_what_is_wrong_with_a_database(
    new_postgres_url: Callable[[], str],
    tmp_path: Path,
    statements: Sequence[str],
    says: str | None,
    hint: str,
) -> None:
    url = new_postgres_url().replace("+psycopg", "")
    name = urlsplit(url).path.strip("/")
    with closing(Database(url, "tests")) as admin:
        for statement in statements:
            admin.run(statement.replace("{}", name))
    log = PostgresqlLog(url, Disk(tmp_path, str(tmp_path)), PIPELINE)
    if says is None:
        log.check()
        assert log.reader.run("SELECT to_regclass('_slackwater') IS NULL") == [(True,)]
    else:
        with pytest.raises(PostgresqlError, match=says) as refused:
            log.check()
        assert refused.value.hint.startswith(hint)
    log.reader.close()


def test_check_names_a_database_that_does_not_have_every_character(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres_url().replace("+psycopg", "")
    name = f"{urlsplit(url).path.strip('/')}_latin1"
    with closing(Database(url, "tests")) as admin:
        admin.run(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    url = urlunsplit(urlsplit(url)._replace(path=f"/{name}"))
    log = PostgresqlLog(url, Disk(tmp_path, str(tmp_path)), PIPELINE)
    with pytest.raises(PostgresqlError, match="has the encoding LATIN1"):
        log.check()
    log.reader.close()


def test_an_operator_who_ends_connections_costs_an_attempt(log: PostgresqlLog) -> None:
    mirror = MergedMirror(log, SCHEMA)
    policy = MergePolicy(are_kept=False)
    [[pid]] = log.database.run("SELECT pg_backend_pid()")
    log.reader.run("SELECT pg_terminate_backend($1::int)", pid)
    with pytest.raises(PublishError, match="PostgreSQL"):
        mirror.commit(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    mirror.merge(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    mirror.require_equal()


def test_a_connection_that_ends_while_rows_come_is_named_and_another_is_opened(
    log: PostgresqlLog,
) -> None:
    [[pid]] = log.reader.run("SELECT pg_backend_pid()")
    rows = "SELECT repeat('x', 100000) AS x FROM generate_series(1, 2000)"

    def read() -> None:
        with log.reader.batches(rows) as batches:
            log.database.run("SELECT pg_terminate_backend($1::int)", pid)
            for _ in batches:
                pass

    with pytest.raises(PublishError, match="PostgreSQL: "):
        read()
    assert log.reader.run("SELECT 1") == [(1,)]


def test_nothing_is_committed_by_itself_after_the_transactions_connection_is_lost(
    log: PostgresqlLog,
) -> None:
    first, second = MergedMirror(log, SCHEMA), MergedMirror(log, SCHEMA)
    at, rows = next_epoch(), latest_of({1: ("whole", {"A": "x"})})
    merge_id, policy = MergeId(PIPELINE, at), MergePolicy(are_kept=False)

    def commit() -> None:
        with log.committing(at, None, is_stated=False, incomplete=[]):
            first.access.merge(rows, COLUMNS, merge_id, policy)
            [[pid]] = log.database.run("SELECT pg_backend_pid()")
            log.reader.run("SELECT pg_terminate_backend($1::int)", pid)
            # Another table's, in a thread beside it.
            for mirror in (first, second):
                with suppress(PublishError):
                    mirror.access.merge(rows, COLUMNS, merge_id, policy)

    with pytest.raises(PublishError, match="connection was lost"):
        commit()
    first.require_equal()
    second.require_equal()
    assert log.reader.run("SELECT low_watermark FROM _slackwater") != [(at,)]


def test_a_statement_that_holds_a_table_for_long_costs_an_attempt(log: PostgresqlLog) -> None:
    mirror, policy = MergedMirror(log, SCHEMA), MergePolicy(are_kept=False)
    log.database.run("SET lock_timeout = '100ms'")
    with log.reader.trial():
        log.reader.run(f"LOCK TABLE {mirror.access.name}")
        with pytest.raises(PublishError, match="lock timeout"):
            mirror.commit(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    mirror.merge(latest_of({1: ("whole", {"A": "x"})}), COLUMNS, policy)
    mirror.require_equal()


@pytest.mark.parametrize("is_altering", [False, True])
def test_a_successor_ends_the_transaction_of_an_owner_that_is_frozen_in_it(
    new_postgres_url: Callable[[], str], tmp_path: Path, is_altering: bool
) -> None:
    url, place = new_postgres_url().replace("+psycopg", ""), Disk(tmp_path, str(tmp_path))
    former, successor, neighbour = (
        PostgresqlLog(url, place, f"slackwater {name}") for name in ("orders", "orders", "others")
    )
    former.take_over(lambda: None)
    neighbour.take_over(lambda: None)

    def freeze() -> None:
        writing = former.committing(low_watermark(1), None, is_stated=True, incomplete=[])
        with former.altering() if is_altering else writing:
            # Other pipelines wait for one that alters tables.
            assert successor.take_over(lambda: None) is None

    with pytest.raises(PublishError):
        freeze()
    with successor.committing(low_watermark(1), None, is_stated=True, incomplete=[]):
        pass
    with neighbour.committing(low_watermark(1), None, is_stated=True, incomplete=[]):
        pass
    with pytest.raises(PublishError, match="taken the pipeline over"):
        freeze()
    for one in (former, successor, neighbour):
        one.database.close()


def test_a_clone_of_a_database_leaves_the_other_ones_owner_alone(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url, place = new_postgres_url().replace("+psycopg", ""), Disk(tmp_path, str(tmp_path))
    name = urlsplit(url).path.strip("/")
    production = PostgresqlLog(url, place, PIPELINE)
    production.take_over(lambda: None)
    # Nobody may be connected to what is copied.
    production.database.close()
    with closing(Database(url.replace(f"/{name}?", "/postgres?"), "tests")) as admin:
        admin.run(f"CREATE DATABASE {name}_clone TEMPLATE {name}")
    staging = PostgresqlLog(url.replace(f"/{name}?", f"/{name}_clone?"), place, PIPELINE)
    with production.committing(low_watermark(1), None, is_stated=True, incomplete=[]):
        staging.take_over(lambda: None)
    for one in (production, staging):
        one.database.close()


def test_pipelines_may_start_together_on_a_new_database(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    place = Disk(tmp_path, str(tmp_path))
    for _ in range(5):
        url = new_postgres_url().replace("+psycopg", "")
        logs = [PostgresqlLog(url, place, f"slackwater {number}") for number in range(4)]
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda one: one.take_over(lambda: None), logs)) == [None] * 4
        for one in logs:
            one.database.close()


def test_a_database_in_another_encoding_is_refused(
    new_postgres_url: Callable[[], str], tmp_path: Path
) -> None:
    url = new_postgres_url().replace("+psycopg", "")
    name = f"{urlsplit(url).path.strip('/')}_latin"
    with closing(Database(url, "tests")) as admin:
        latin = "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0"
        admin.run(f"CREATE DATABASE {name} {latin}")
    other = url.replace(f"/{name.removesuffix('_latin')}?", f"/{name}?")
    log = PostgresqlLog(other, Disk(tmp_path, str(tmp_path)), PIPELINE)
    with pytest.raises(PostgresqlError, match="encoding LATIN1"):
        log.take_over(lambda: None)
    log.database.close()


def test_options_of_a_url_reach_the_server_as_they_are(new_postgres_url: Callable[[], str]) -> None:
    url = new_postgres_url().replace("+psycopg", "")
    options = "options=-c%20search_path%3Dtyped%20-cwork_mem%3D8MB&client_encoding=LATIN1"
    long = "slackwater " + "é" * 60
    with closing(Database(f"{url}&{options}", long)) as database:
        asked = ("search_path", "work_mem", "client_encoding", "application_name")
        settings = ", ".join(f"current_setting('{name}')" for name in asked)
        [[*values, name]] = database.run(f"SELECT {settings}")
    assert values == ["typed", "8MB", "UTF8"]
    assert name.startswith("slackwater ")


def test_a_database_that_is_not_there_is_the_users_mistake_and_a_server_is_the_worlds(
    new_postgres_url: Callable[[], str],
) -> None:
    url = new_postgres_url().replace("+psycopg", "").replace("/test_", "/no_")
    with pytest.raises(PostgresqlError, match="does not exist"):
        Database(url, "tests").run("SELECT 1")
    with pytest.raises(PublishError, match="Connection refused"):
        Database("postgresql://127.0.0.1:1/x", "tests").run("SELECT 1")
