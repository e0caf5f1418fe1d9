"""Whoever follows docs/replica.md moves to PostgreSQL, with all rows and keys that go on."""

import os
import shlex
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from google.cloud import spanner

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import create_database, database_of
from tests.support.command_line import PROGRAM, output_of, slackwater
from tests.support.pages import blocks
from tests.support.postgres import PROGRAMS, running_server
from tests.support.postgres_door import door_before
from tests.support.waiting import wait_until

PAGE = "replica.md"
IN_SPANNER, IN_POSTGRESQL = blocks(PAGE, "sql")
FOLLOW, CATCH_UP, SWITCH = blocks(PAGE, "sh")
PARTITION_ALIVE_S = 20
_WAIT_S_MAX = 300
_TABLES = {"Customers": "CustomerId, Name", "Orders": "CustomerId, OrderId, Cents, Euros"}


class Shop:
    """The tables in Spanner, and what writes to them."""

    def __init__(self, stream: ChangeStream) -> None:
        self._database = database_of(stream)

    def write(self, customers: int) -> None:
        """Add customers, each with two orders; change one, and delete one with its orders."""

        def in_transaction(transaction: Any) -> None:
            added = "INSERT INTO Customers (Name) VALUES ('new') THEN RETURN CustomerId"
            ids = [next(iter(transaction.execute_sql(added)))[0] for _ in range(customers)]
            orders = [(customer, number, 150 * number) for customer in ids for number in (1, 2)]
            transaction.insert("Orders", ("CustomerId", "OrderId", "Cents"), orders)
            transaction.update("Customers", ("CustomerId", "Name"), [(ids[0], "changed")])
            transaction.delete("Customers", spanner.KeySet(keys=[(ids[1],)]))

        self._database.run_in_transaction(in_transaction)

    def rows(self) -> dict[str, list[tuple[Any, ...]]]:
        with self._database.snapshot(multi_use=True) as snapshot:
            return {
                table: sorted(map(tuple, snapshot.execute_sql(f"SELECT {columns} FROM {table}")))
                for table, columns in _TABLES.items()
            }


@contextmanager
def empty_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Run a server that libpq's variables name, and its programs; yield the URL of `shop`."""
    with running_server() as url, door_before(url) as door:
        monkeypatch.setenv("PGHOST", "localhost")
        monkeypatch.setenv("PGPORT", str(urlsplit(door.url).port))
        monkeypatch.setenv("PGUSER", "postgres")
        monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
        yield door.url.removesuffix("postgres") + "shop"


def follow(commands: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Carry out commands of the page."""
    for line in commands.splitlines():
        match shlex.split(line):
            case ["export", pair]:
                monkeypatch.setenv(*pair.split("="))
            case ["slackwater", *arguments]:
                output_of(slackwater(*arguments))
            case command:
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                output_of(done)


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (folder / "run.log").open("wb") as log,
        subprocess.Popen([*PROGRAM, "run"], cwd=folder, stdout=log, stderr=log) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def wait_for(is_so: Callable[[], bool], folder: Path) -> None:
    wait_until(is_so, lambda: (folder / "run.log").read_text()[-3_000:], seconds_max=_WAIT_S_MAX)


def numbers(connection: psycopg.Connection[Any]) -> list[int]:
    """Return how many rows there are by table; none before there are tables."""
    try:
        counts = (connection.execute(f'SELECT COUNT(*) FROM "{table}"') for table in _TABLES)
        return [next(iter(count))[0] for count in counts]
    except psycopg.errors.UndefinedTable:
        return []


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
def test_all_rows_move_to_postgresql_and_its_keys_go_on(
    emulator: Emulator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements = [text.strip() for text in IN_SPANNER.split(";") if text.strip()]
    names = ("test-project", "test-instance", "shop", "Everything")
    stream = ChangeStream(*names, endpoint=plaintext(emulator.host))
    create_database(stream, Dialect.GOOGLE_STANDARD_SQL, statements)
    shop = Shop(stream)
    shop.write(20)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SLACKWATER_HTTP_LISTEN", "127.0.0.1:0")
    # Spark of this process was started in another folder.
    monkeypatch.setenv("SLACKWATER_STATE_URL", f"sqlite:///{tmp_path / 'state.db'}")
    Path("switch.sql").write_text(IN_POSTGRESQL)
    with empty_server(monkeypatch) as url:
        *commands, last = FOLLOW.splitlines()
        assert last == "slackwater run"
        of_page = "\n".join(commands).replace("my-project", stream.project)
        follow(of_page.replace("my-instance", stream.instance), monkeypatch)
        with closing(psycopg.connect(url, autocommit=True)) as connection:
            with running(tmp_path) as process:
                wait_for(lambda: numbers(connection) == [19, 38], tmp_path)
                shop.write(30)
                wait_for(lambda: numbers(connection) == [48, 96], tmp_path)
                shop.write(5)
                drain, *caught_up = CATCH_UP.splitlines()
                follow(drain, monkeypatch)
                assert process.wait(timeout=60) == 0
            shop.write(10)
            follow("\n".join(caught_up), monkeypatch)
            follow(SWITCH, monkeypatch)
            require_moved(connection, shop)
        again = slackwater("run", "--until-caught-up")
        assert again.returncode == 2, again.stderr
        assert 'role "slackwater" is not permitted to log in' in again.stderr


def require_moved(connection: psycopg.Connection[Any], shop: Shop) -> None:
    """Require Spanner's rows, its constraints, and keys that nobody has."""
    for table, rows in shop.rows().items():
        columns = ", ".join(f'"{name}"' for name in _TABLES[table].split(", "))
        assert sorted(connection.execute(f'SELECT {columns} FROM "{table}"')) == rows
    before = {row[0] for row in connection.execute('SELECT "CustomerId" FROM "Customers"')}
    insert = """INSERT INTO "Customers" ("Name") VALUES ('after') RETURNING "CustomerId" """
    added = [next(iter(connection.execute(insert)))[0] for _ in range(100)]
    assert len(before | set(added)) == len(before) + 100
    assert all(key > 1 << 32 for key in added), "these are not spread as Spanner's are"
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        connection.execute('INSERT INTO "Orders" VALUES (-1, 1, 1)')
    with pytest.raises(psycopg.errors.NotNullViolation):
        connection.execute('INSERT INTO "Customers" ("Name") VALUES (NULL)')
    connection.execute('DELETE FROM "Customers"')
    assert numbers(connection) == [0, 0]
    left = "SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tableowner != 'shop'"
    assert list(connection.execute(left)) == []
