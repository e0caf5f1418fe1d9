"""Databases with the tables of one pipeline: how sinks write to them, and how they are read."""

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from google.cloud.bigquery import SchemaField, Table
from pyspark.sql import SparkSession

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_transaction.names import identifier
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.timestamp import datetime_to_rfc3339
from tests.support.bigquery import PROJECT, BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.ducklakes import Lake
from tests.support.epoch_rows import Mods, Record, low_watermark, make_sink, record
from tests.support.handed_on import Tasks
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server
from tests.support.postgres import rows_in
from tests.support.postgres_door import PostgresDoor, door_before

COLUMNS = {"Id": "INT64", "Name": "STRING"}
SCANNED = (Column("Id", "INT64", True), Column("Name", "STRING(MAX)", False))
TABLE = "sales.Orders"
Rows = list[dict[str, Any]]


class DatabasePlace(ABC):
    """The tables of one pipeline.

    Attributes:
        folder: of its checkpoint and its log.
        kind: of the sink.
        format: of its settings.
        refused_elsewhere: the remedy where a table is another one's.
    """

    format: ClassVar[str]
    refused_elsewhere: ClassVar[str]

    def __init__(self, spark: SparkSession, folder: Path, kind: str, **settings: Any) -> None:
        self.spark = spark
        self.folder = folder
        self.kind = kind
        self.settings = settings

    @property
    def log_folder(self) -> Path:
        """Where epochs are staged."""
        return self.folder / "checkpoint-log"

    @abstractmethod
    def at(self) -> dict[str, Any]:
        """Return the settings that say where it is, through the door."""

    def sink(self, **settings: Any) -> Any:
        made: Any = make_sink(
            kind=self.kind,
            format=self.format,
            checkpoint=str(self.folder / "checkpoint"),
            **{**self.at(), **self.settings, **settings},
        )
        return made

    def owner(self, **settings: Any) -> tuple[Any, Tasks]:
        """Return a sink of a new process, and its tasks."""
        sink = self.sink(**settings)
        sink.position(self.spark)
        return sink, Tasks(sink, self.spark)

    @abstractmethod
    def rows(self, table: str = TABLE) -> Rows:
        """Return a table's rows."""

    def ids(self, table: str = TABLE) -> list[int]:
        rows = self.rows(table)
        return sorted((row if self.kind == "mirror" else row["key"])["Id"] for row in rows)

    def names(self, table: str = TABLE) -> dict[int, Any]:
        """Return the names in a mirror by the ids."""
        rows = [(row["Id"], row["Name"]) for row in self.rows(table)]
        assert len(rows) == len(dict(rows)), "a row is there twice"
        return dict(rows)

    @abstractmethod
    def stated(self) -> str | None:
        """Return the low watermark of all tables."""

    @abstractmethod
    def lose(self, method: str, lost: str) -> None:
        """Lose requests or their answers."""

    @abstractmethod
    def new_door(self) -> Any:
        """Return a context in which it is reached through another door."""

    @abstractmethod
    def make_others(self) -> Callable[[], object]:
        """Make a table of TABLE's name that others own, and return what removes it."""

    @abstractmethod
    def forget(self) -> None:
        """Have no epoch be there any more."""


class BigQueryPlace(DatabasePlace):
    """A dataset."""

    format = "bigquery"
    refused_elsewhere = "Name a dataset of its own"

    def __init__(
        self,
        server: BigQueryServer,
        door: Door,
        spark: SparkSession,
        folder: Path,
        kind: str,
        **settings: Any,
    ) -> None:
        super().__init__(spark, folder, kind, **settings)
        self.server = server
        self.door = door
        self.dataset = f"d_{uuid.uuid4().hex}"
        server.client.create_dataset(self.dataset)

    def at(self) -> dict[str, Any]:
        options = self.server.options(self.door)
        return {"path": f"bq://{PROJECT}/{self.dataset}", "storage_options": options}

    def id(self, table: str = TABLE) -> str:
        return f"{PROJECT}.{self.dataset}.{table.replace('.', '_')}"

    def rows(self, table: str = TABLE) -> Rows:
        return self.server.query(f"SELECT * FROM `{self.id(table)}`")

    def stated(self) -> str | None:
        marks = self.id("_slackwater")
        [row] = self.server.query(f"SELECT MAX(low_watermark) AS at FROM `{marks}`")
        return None if row["at"] is None else datetime_to_rfc3339(row["at"])

    def lose(self, method: str, lost: str) -> None:
        def lose(name: str, _: str) -> None:
            if name == method:
                raise RuntimeError("lost")

        setattr(self.door, "before" if lost == "requests" else "after", lose)

    @contextmanager
    def new_door(self) -> Iterator[None]:
        with self.server.door() as self.door:
            yield

    def make_others(self) -> Callable[[], object]:
        client, table = self.server.client, self.id()
        client.create_table(Table(table, [SchemaField("Id", "INTEGER")]))
        return lambda: client.delete_table(table)

    def forget(self) -> None:
        others = () if self.kind == "mirror" else (TABLE, "Keys")
        for table in ("_slackwater", *others):
            self.server.query(f"DELETE FROM `{self.id(table)}` WHERE TRUE")


class PostgresqlPlace(DatabasePlace):
    """A database of PostgreSQL's."""

    format = "postgresql"
    refused_elsewhere = "Name a database of its own"

    def __init__(
        self,
        url: str,
        door: PostgresDoor,
        spark: SparkSession,
        folder: Path,
        kind: str,
        **settings: Any,
    ) -> None:
        super().__init__(spark, folder, kind, **settings)
        self._url = url
        self.door = door
        self.database = Database(url, "tests")

    def at(self) -> dict[str, Any]:
        return {"path": self.door.url}

    def rows(self, table: str = TABLE) -> Rows:
        rows = rows_in(self.database, f"SELECT * FROM {quoted(table)}")
        return list(map(nested, rows.to_pylist()))

    def stated(self) -> str | None:
        [[at]] = self.database.run("SELECT MAX(low_watermark) FROM _slackwater")
        return None if at is None else datetime_to_rfc3339(at)

    def lose(self, method: str, lost: str) -> None:
        lose_at(self.door, method, lost)

    @contextmanager
    def new_door(self) -> Iterator[None]:
        with door_before(self._url) as self.door:
            yield

    def make_others(self) -> Callable[[], object]:
        self.database.run("CREATE SCHEMA IF NOT EXISTS sales")
        self.database.run('CREATE TABLE sales."Orders" ("Id" bigint)')
        return lambda: self.database.run('DROP TABLE sales."Orders"')

    def forget(self) -> None:
        self.database.run("DELETE FROM _slackwater")


class DuckLakePlace(DatabasePlace):
    """A DuckLake.

    Args:
        door: before the server of its catalog; None for a catalog in SQLite.
        url: of the catalog's database behind it.
    """

    format = "ducklake"
    refused_elsewhere = "Name a lake of its own"

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        kind: str,
        *,
        door: PostgresDoor | None = None,
        url: str = "",
    ) -> None:
        super().__init__(spark, folder, kind)
        self._folder = folder / "lake"
        self._url = url
        self.door = door
        self.lake = Lake(f"postgres:{url}") if door else Lake.in_folder(self._folder)

    @property
    def log_folder(self) -> Path:
        return self._folder / "log"

    def at(self) -> dict[str, Any]:
        catalog = {"catalog": self.door.url} if self.door else {}
        return {"path": str(self._folder), **catalog}

    def rows(self, table: str = TABLE) -> Rows:
        return self.lake.rows(quoted(table))

    def stated(self) -> str | None:
        [row] = self.lake.rows("(SELECT MAX(low_watermark) AS low_watermark FROM _slackwater)")
        at = row["low_watermark"]
        return None if at is None else datetime_to_rfc3339(at)

    def lose(self, method: str, lost: str) -> None:
        assert self.door is not None
        lose_at(self.door, method, lost)

    @contextmanager
    def new_door(self) -> Iterator[None]:
        with door_before(self._url) as self.door:
            yield

    def make_others(self) -> Callable[[], object]:
        # As who makes the lake: nobody has, yet.
        self.sink().position(self.spark)
        self.lake.run('CREATE SCHEMA sales; CREATE TABLE sales."Orders" ("Id" bigint)')
        return lambda: self.lake.run('DROP TABLE sales."Orders"')

    def forget(self) -> None:
        self.lake.run("DELETE FROM _slackwater")


def lose_at(door: PostgresDoor, method: str, lost: str) -> None:
    """Cut the connections through a door at a statement."""

    def lose(name: str, part: str) -> None:
        if name == method and lost == f"{part}s":
            raise RuntimeError("lost")

    door.before = lose


@pytest.fixture
def changelogs(
    server: BigQueryServer, door: Door, session: SparkSession, tmp_path: Path
) -> BigQueryPlace:
    """Return a dataset for typed changelogs."""
    return BigQueryPlace(server, door, session, tmp_path, "changelogs")


@pytest.fixture
def mirrors(
    server: BigQueryServer, door: Door, session: SparkSession, tmp_path: Path
) -> BigQueryPlace:
    """Return a dataset for mirrors that are changed by one transaction."""
    return BigQueryPlace(server, door, session, tmp_path, "mirror")


@pytest.fixture
def upserted(
    server: BigQueryServer, door: Door, session: SparkSession, tmp_path: Path
) -> BigQueryPlace:
    """Return a dataset for mirrors that are consistent each by itself."""
    return BigQueryPlace(server, door, session, tmp_path, "mirror", consistency="table")


@pytest.fixture
def in_postgresql(
    new_postgres_url: Callable[[], str], session: SparkSession, tmp_path: Path
) -> Iterator[PostgresqlPlace]:
    """Return a database of PostgreSQL's for mirrors."""
    with postgresql_place(new_postgres_url(), session, tmp_path, "mirror") as place:
        yield place


@pytest.fixture
def changelogs_in_postgresql(
    new_postgres_url: Callable[[], str], session: SparkSession, tmp_path: Path
) -> Iterator[PostgresqlPlace]:
    """Return a database of PostgreSQL's for typed changelogs, with partitions."""
    by_day = {"partition_by": "DAY"}
    with postgresql_place(
        new_postgres_url(), session, tmp_path, "changelogs", table_properties=by_day
    ) as place:
        yield place


@pytest.fixture
def in_ducklake(
    new_postgres_url: Callable[[], str], session: SparkSession, tmp_path: Path
) -> Iterator[DuckLakePlace]:
    """Return a DuckLake for mirrors, with its catalog in PostgreSQL."""
    url = new_postgres_url().replace("+psycopg", "")
    with door_before(url) as door:
        yield DuckLakePlace(session, tmp_path, "mirror", door=door, url=url)


@pytest.fixture
def in_own_ducklake(session: SparkSession, tmp_path: Path) -> DuckLakePlace:
    """Return a DuckLake for mirrors, with its catalog in SQLite."""
    return DuckLakePlace(session, tmp_path, "mirror")


@pytest.fixture
def changelogs_in_ducklake(session: SparkSession, tmp_path: Path) -> DuckLakePlace:
    """Return a DuckLake for typed changelogs, with its catalog in SQLite."""
    return DuckLakePlace(session, tmp_path, "changelogs")


@contextmanager
def postgresql_place(
    url: str, session: SparkSession, folder: Path, kind: str, **settings: Any
) -> Iterator[PostgresqlPlace]:
    url = url.replace("+psycopg", "")
    with door_before(url) as door:
        place = PostgresqlPlace(url, door, session, folder, kind, **settings)
        yield place
        place.database.close()


def quoted(table: str) -> str:
    """Return the full name of a table as SQL has it."""
    return ".".join(map(identifier, table.split(".")))


def nested(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with a column PART.NAME as the item NAME of PART."""
    nested: dict[str, Any] = {}
    for name, value in row.items():
        part, _, of_part = name.rpartition(".")
        (nested.setdefault(part, {}) if part else nested)[of_part] = value
    return nested


def of_scan(row: Record) -> Record:
    """Return the record of a row, which is of no transaction."""
    return (row[0], "", *row[2:])


def of_epoch(number: int, *records: Record) -> list[Record]:
    """Return records with the low watermark of their epoch."""
    return [(*one[:-1], low_watermark(number)) for one in records]


def updated(number: int, name: str, *, at: int) -> Record:
    """Return a record that changes a row's name."""
    row: Mods = [({"Id": str(number)}, {"Name": name}, {})]
    return record("UPDATE", row, COLUMNS, at=at, capture="NEW_ROW")


def deleted(number: int, *, at: int) -> Record:
    """Return a record that deletes a row."""
    return record("DELETE", [({"Id": str(number)}, {}, {})], COLUMNS, at=at)
