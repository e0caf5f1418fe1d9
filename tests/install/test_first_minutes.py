"""A stranger's first minutes: `init`, `check` and `run` as they are, for each sink.

The program is the installed wheel's, the folder and the user's home are empty, and what landed is
read by other libraries.
"""

import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import chdir, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
import yaml
from deltalake import DeltaTable
from google.api_core.exceptions import NotFound
from pyiceberg.table import StaticTable

from slackwater.config.load import DEFAULT_FILE
from slackwater.config.new_file import SINKS
from slackwater.demo.load import CHANGE_STREAM, Load, ddl
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.errors import PostgresqlError
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.testing.emulator_database import database_of
from tests.install.environments import Environment, new_environment, run
from tests.support.bigquery import BigQueryServer, bigquery_server
from tests.support.command_line import output_of, slackwater
from tests.support.ducklakes import Lake
from tests.support.emulators import NewDatabase
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_broker import read_topics, spark_conf
from tests.support.postgres import rows_in, running_server
from tests.support.postgres_door import door_before
from tests.support.pubsub import PubSubEmulator, running_pubsub
from tests.support.truths import truth_of
from tests.support.waiting import wait_until

TABLES = ("Customers", "Orders", "Payments")
WITHIN_S = 600
PARTITION_ALIVE_S = 20
# Several in one process cost little more than one. How Spanner is read is the same for each sink,
# but for the mirror, which reads rows, too. The others' settings, which
# tests/unit/config/test_new_file.py loads, differ from one of these in a word.
TOGETHER = (
    # In `make test` on the newer Spark alone.
    ("iceberg", "mirror", "parquet"),
    (
        *("changelogs", "spark", "kafka", "postgresql"),
        *("ducklake", "pubsub", "bigquery_mirror"),
    ),
)
# A message is of a whole row.
OF_MESSAGES = ("kafka", "pubsub")
IN_BIGQUERY = ("bigquery", "bigquery_mirror")
STORAGE_OPTIONS = "SLACKWATER_SINK_STORAGE_OPTIONS"
# Alone, a file is run as `init` wrote it.
CASES = [
    *(pytest.param([*zip(group, cycle(Dialect))], id="-".join(group)) for group in TOGETHER),
    *(
        pytest.param([(sink, dialect)], id=f"{sink}-{dialect.value}", marks=pytest.mark.long)
        for sink in SINKS
        for dialect in Dialect
    ),
]


@dataclass(frozen=True)
class Home:
    """A user's folder, the installed program, and what its commands find in the environment."""

    folder: Path
    program: Path
    variables: dict[str, str]

    def command(self, *arguments: str) -> str:
        return run(str(self.program), *arguments, cwd=self.folder, variables=self.variables)

    def command_here(self, *arguments: str) -> str:
        """Run a command of the checkout's, which starts no process."""
        with chdir(self.folder), patch.dict(os.environ, self.variables):
            return output_of(slackwater(*arguments))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = new_environment(tmp_path_factory.mktemp("installed") / "environment")
    environment.install(str(wheel))
    return environment


@pytest.fixture
def home(installed: Environment, tmp_path: Path) -> Home:
    folder = tmp_path / "empty"
    folder.mkdir()
    # Other tests have the port that `init` writes.
    variables = {"SLACKWATER_HTTP_LISTEN": "127.0.0.1:0", "HOME": str(installed.folder.parent)}
    return Home(folder, installed.folder / "bin" / "slackwater", variables)


@contextmanager
def running(home: Home, file: str) -> Iterator[Path]:
    """Run the pipelines of a file; yield their output as soon as their page is served."""
    output = home.folder.parent / "output"
    dropped = ("PYTHONPATH", "PYSPARK_PYTHON")
    environ = {k: v for k, v in os.environ.items() if k not in dropped} | home.variables
    with (
        output.open("wb") as said,
        subprocess.Popen(
            [str(home.program), "run", *of_file(file)],
            cwd=home.folder,
            env=environ,
            stdout=said,
            stderr=said,
            umask=0o022,
        ) as process,
    ):
        try:
            await_(lambda: "serving" in output.read_text(), output)
            yield output
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 0, output.read_text()[-3_000:]
        finally:
            process.kill()


def of_file(file: str) -> list[str]:
    return [] if file == DEFAULT_FILE.name else ["-c", file]


def await_(is_so: Callable[[], bool], output: Path) -> None:
    wait_until(is_so, lambda: output.read_text()[-5_000:], seconds_max=WITHIN_S, pause_s=0.5)


@pytest.mark.parametrize("chosen", CASES)
def test_what_init_writes_lands_every_change_since_the_command(
    chosen: list[tuple[str, Dialect]],
    home: Home,
    new_database: NewDatabase,
    request: pytest.FixtureRequest,
) -> None:
    is_alone = len(chosen) == 1
    sources: dict[tuple[Dialect, bool], Source] = {}
    pipelines: list[Written] = []
    for sink, dialect in chosen:
        kind = (dialect, sink in OF_MESSAGES)
        if kind not in sources:
            sources[kind] = Source(new_database, *kind)
        broker = request.getfixturevalue("kafka_broker") if sink == "kafka" else None
        if broker:
            # A jar that the sink needs is not in every Maven repository.
            home.variables["SLACKWATER_SPARK_CONF"] = json.dumps(spark_conf())
        home.variables.pop(STORAGE_OPTIONS, None)
        warehouse = request.getfixturevalue("warehouse") if sink in IN_BIGQUERY else None
        if warehouse:
            home.variables[STORAGE_OPTIONS] = json.dumps(warehouse.options)
        postgres = request.getfixturevalue("postgres") if sink == "postgresql" else None
        if postgres:
            home.variables.update(postgres.variables)
        topics = request.getfixturevalue("topics") if sink == "pubsub" else None
        if topics:
            home.variables["PUBSUB_EMULATOR_HOST"] = topics.emulator.host
        servers = Servers(broker, warehouse, postgres, topics)
        name = "" if is_alone else f"{sink}-{len(pipelines)}"
        # The wheel's own `init` writes the first one's, and the checkout's the others'.
        command = home.command_here if pipelines else home.command
        pipelines.append(begun(sink, sources[kind], home, command, servers, name))
    if is_alone:
        assert_ok(home.command("check").splitlines())
    with running(home, file_of_all(home, pipelines)) as said:
        # Spark is starting.
        for source in sources.values():
            source.write()
        for pipeline in pipelines:
            await_(partial(pipeline.has_landed, said), said)
    for pipeline in pipelines:
        assert pipeline.has_landed(said), f"{pipeline.name}: more has landed than was written"
    assert "resolving dependencies" not in said.read_text()
    made = (home.folder / "out").rglob("*")
    assert [path for path in made if path.lstat().st_mode & 0o077] == [], "others can read it"
    if is_alone:
        shown = home.command("status").splitlines()
        assert shown[0].startswith(f"{pipelines[0].name}: Is not running")


@dataclass(frozen=True)
class Warehouse:
    """BigQuery, and the options by which a pipeline reaches it."""

    server: BigQueryServer
    options: Mapping[str, str]


@pytest.fixture
def warehouse() -> Iterator[Warehouse]:
    with bigquery_server() as server, server.door() as door:
        yield Warehouse(server, server.options(door))


@dataclass(frozen=True)
class Postgres:
    """A server, and the variables of libpq's by which a pipeline reaches it at localhost."""

    url: str
    variables: Mapping[str, str]

    def database(self, name: str) -> Database:
        return Database(self.url.replace("/postgres?", f"/{name}?"), "tests")

    def make(self, name: str) -> None:
        with closing(self.database("postgres")) as maintenance:
            maintenance.run(f"CREATE DATABASE {name}")

    def mirrors(self, name: str) -> dict[str, list[str]] | None:
        with closing(self.database(name)) as database, suppress(PostgresqlError):
            rows = {t: rows_in(database, f'SELECT * FROM "{t}"').to_pylist() for t in TABLES}
            return {table: keys(of_it, table) for table, of_it in rows.items()}
        return None


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    with running_server() as url:
        plain = url.replace("+psycopg", "")
        with door_before(plain) as door:
            port = str(urlsplit(door.url).port)
            yield Postgres(plain, {"PGPORT": port, "PGUSER": "postgres"})


@dataclass
class Topics:
    """Pub/Sub's, and the messages that have been pulled."""

    emulator: PubSubEmulator
    pulled: set[str] = field(default_factory=set)

    def messages(self) -> set[str]:
        for table in TABLES:
            for message in self.emulator.pull(f"spanner-{table}"):
                self.pulled.add(message.message_id)
        return self.pulled


@pytest.fixture
def topics() -> Iterator[Topics]:
    with running_pubsub("test-project") as emulator:
        emulator.create(*(f"spanner-{table}" for table in TABLES))
        yield Topics(emulator)


@dataclass(frozen=True)
class Servers:
    """Where some sinks write: Kafka's broker, BigQuery, PostgreSQL and Pub/Sub."""

    broker: str | None
    warehouse: Warehouse | None
    postgres: Postgres | None
    topics: Topics | None


class Source:
    """A database that has changes already, and what is written to it while pipelines run.

    Args:
        new_database: makes it.
        dialect: its dialect.
        is_of_messages: whether a pipeline that sends messages reads it.
    """

    def __init__(self, new_database: NewDatabase, dialect: Dialect, is_of_messages: bool) -> None:
        self.dialect, self._is_of_messages = dialect, is_of_messages
        self.stream: ChangeStream = new_database(dialect, statements(dialect, is_of_messages))
        self._load = Load(self.stream, dialect, seed=5)
        self._load.run(transactions_per_second=20, seconds=0.5)
        self.number = 0
        # As `init` names a database after it.
        self.schema = self.stream.database.replace("-", "_")
        self.dataset = f"{self.stream.project}.{self.schema}"

    def write(self) -> None:
        """Write, and note the number of transactions, or of messages."""
        connection = Connection(self.stream)
        begun_ns = connection.strong_read_timestamp_ns()
        self.number = self._load.run(transactions_per_second=20, seconds=1).transactions
        if self._is_of_messages:
            # A message has no transaction, and is one of a row.
            until_ns = connection.strong_read_timestamp_ns()
            truth = truth_of(self.stream, begun_ns, until_ns, self.dialect)
            self.number = sum(len(record.mods) for record in truth.records)


@dataclass
class Written:
    """A pipeline whose settings `init` has written.

    Attributes:
        file: the name of the settings file.
        servers: those of the sink.
        before: what had landed before it ran.
    """

    name: str
    file: str
    sink: str
    source: Source
    output: Path
    servers: Servers
    before: frozenset[str] = frozenset()

    def has_landed(self, said: Path) -> bool:
        """Return whether just what was written since the command has landed."""
        if self.sink in ("mirror", "bigquery_mirror", "postgresql", "ducklake"):
            return self.mirrored() == spanners(self.source.stream, self.source.dialect)
        if self.sink == "spark":
            epochs = re.findall(rf"event=epoch pipeline={self.name} .*", said.read_text())
            counts = re.findall(r" transactions=(\d+)", "\n".join(epochs))
            return " INSERT|" in said.read_text() and sum(map(int, counts)) == self.source.number
        return len(self.seen() - self.before) == self.source.number

    def mirrored(self) -> dict[str, list[str]] | None:
        if self.servers.postgres:
            return self.servers.postgres.mirrors(self.source.schema)
        if self.servers.warehouse:
            return mirrors_in(self.servers.warehouse.server, self.source.dataset)
        return lake_mirrors(self.output) if self.sink == "ducklake" else mirrors(self.output)

    def seen(self) -> set[str]:
        if self.servers.postgres:
            return set()
        if self.servers.topics:
            return set(self.servers.topics.messages())
        if self.servers.warehouse:
            return of_bigquery(self.servers.warehouse.server, self.source.dataset)
        return seen_changes(self.sink, self.output, self.servers.broker)


def begun(
    sink: str,
    source: Source,
    home: Home,
    command: Callable[..., str],
    servers: Servers,
    name: str,
) -> Written:
    """Let `init` write and check the settings of a pipeline; without a name, in the usual file."""
    stream, file = source.stream, f"{name}.yaml" if name else DEFAULT_FILE.name
    names = ("--project", stream.project, "--instance", stream.instance)
    options = [*names, "--database", stream.database, "--sink", sink, *of_file(file)]
    if servers.broker:
        # It remembers the positions of other tests' pipelines.
        name = f"{name or sink}-{uuid.uuid4().hex[:8]}"
        options += ["--kafka-servers", servers.broker]
    if name:
        options += ["--pipeline", name]
    if servers.warehouse:
        servers.warehouse.server.client.create_dataset(source.dataset, exists_ok=True)
    if servers.postgres:
        servers.postgres.make(source.schema)
    assert_ok(command("init", *options, "--check").splitlines()[1:])
    name = name or CHANGE_STREAM.lower()
    written = Written(name, file, sink, source, home.folder / "out" / name, servers)
    written.before = frozenset(written.seen())
    return written


def assert_ok(checked: list[str]) -> None:
    assert len(checked) >= 5
    assert not [line for line in checked if line and not line.startswith("ok ")]


def file_of_all(home: Home, pipelines: list[Written]) -> str:
    """Return the name of a file with all of them, as docs/settings.md says."""
    if len(pipelines) == 1:
        return pipelines[0].file
    home.variables.pop(STORAGE_OPTIONS, None)
    files = [yaml.safe_load((home.folder / pipeline.file).read_text()) for pipeline in pipelines]
    for pipeline, file in zip(pipelines, files, strict=True):
        if pipeline.servers.warehouse:
            # No other sink's: by them its stand-in is reached.
            file["sink"]["storage_options"] = dict(pipeline.servers.warehouse.options)
    together: dict[str, Any] = {key: files[0][key] for key in ("state", "http")}
    together["pipelines"] = {
        file["pipeline"]: {key: file[key] for key in ("source", "sink")} for file in files
    }
    (home.folder / "all.yaml").write_text(yaml.safe_dump(together))
    return "all.yaml"


def statements(dialect: Dialect, is_of_messages: bool) -> list[str]:
    """Return the demo's schema, with a stream that captures what is needed."""
    *tables, stream = ddl(dialect)
    clause = "WITH" if dialect is Dialect.POSTGRESQL else "OPTIONS"
    whole_rows = f" {clause} (value_capture_type = 'NEW_ROW')" if is_of_messages else ""
    return [*tables, stream + whole_rows]


def mirrors_in(server: BigQueryServer, dataset: str) -> dict[str, list[str]] | None:
    try:
        tables = {table: server.query(f"SELECT * FROM `{dataset}.{table}`") for table in TABLES}
    except NotFound:
        return None
    return {name: keys(rows, name) for name, rows in tables.items()}


def seen_changes(sink: str, output: Path, broker: str | None) -> set[str]:
    """Return the transactions that have landed, or Kafka's messages."""
    column = "server_transaction_id"
    if sink in ("parquet", "orc"):
        if not list((output / "changes").glob("epoch=*")):
            return set()
        return ids(ds.dataset(output / "changes", format=sink).to_table([column]))
    if sink == "json":
        return {
            json.loads(line)[column]
            for file in (output / "changes").glob("epoch=*/*.json")
            for line in file.read_text().splitlines()
        }
    if sink == "delta":
        return of_delta(output / "changes", column)
    if sink == "changelogs":
        return set().union(*(of_delta(output / "changelogs" / table, column) for table in TABLES))
    if sink == "iceberg":
        return of_iceberg(output / "changes", column)
    return of_kafka(broker) if broker else set()


def ids(table: pa.Table) -> set[str]:
    return set(table.column("server_transaction_id").to_pylist())


def of_delta(path: Path, column: str) -> set[str]:
    if not (path / "_delta_log" / f"{0:020}.json").exists():
        return set()
    return ids(DeltaTable(path).to_pyarrow_table(columns=[column]))


def of_bigquery(server: BigQueryServer, dataset: str) -> set[str]:
    try:
        rows = server.query(f"SELECT DISTINCT server_transaction_id AS id FROM `{dataset}.changes`")
    except NotFound:
        return set()
    return {row["id"] for row in rows}


def of_kafka(broker: str) -> set[str]:
    return {
        f"{topic} {partition} {message.offset()}"
        for table in TABLES
        for (topic, partition), messages in read_topics(broker, table).items()
        for message in messages
        if topic == table
    }


def of_iceberg(path: Path, column: str) -> set[str]:
    files = sorted((path / "metadata").glob("v*.metadata.json"), key=lambda f: int(f.name[1:-14]))
    if not files:
        return set()
    return ids(StaticTable.from_metadata(str(files[-1])).scan(selected_fields=(column,)).to_arrow())


def mirrors(output: Path) -> dict[str, list[str]] | None:
    folder = output / "mirrors"
    if not all((folder / table / "_delta_log" / f"{0:020}.json").exists() for table in TABLES):
        return None
    tables = {table: DeltaTable(folder / table).to_pyarrow_table() for table in TABLES}
    return {name: keys(table.to_pylist(), name) for name, table in tables.items()}


def lake_mirrors(output: Path) -> dict[str, list[str]] | None:
    lake = Lake.in_folder(output / "lake")
    try:
        return {table: keys(lake.rows(f'"{table}"'), table) for table in TABLES}
    except duckdb.Error:
        # Some are not made yet.
        return None


def spanners(stream: ChangeStream, dialect: Dialect) -> dict[str, list[str]]:
    database = database_of(stream)
    quote = '"' if dialect is Dialect.POSTGRESQL else "`"
    found: dict[str, list[str]] = {}
    for table in TABLES:
        columns = KEYS[table]
        listed = ", ".join(f"{quote}{column}{quote}" for column in columns)
        with database.snapshot() as snapshot:
            rows = snapshot.execute_sql(f"SELECT {listed} FROM {quote}{table}{quote}")
            found[table] = keys([dict(zip(columns, row, strict=True)) for row in rows], table)
    return found


KEYS = {
    "Customers": ("CustomerId", "Name"),
    "Orders": ("CustomerId", "OrderId", "Item"),
    "Payments": ("PaymentId", "Amount"),
}


def keys(rows: list[dict[str, Any]], table: str) -> list[str]:
    return sorted(str([row[column] for column in KEYS[table]]) for row in rows)
