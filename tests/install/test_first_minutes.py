"""A stranger's first minutes: `init`, `check` and `run` as they are, for each sink.

The program is the installed wheel's, the folder and the user's home are empty, and what landed is
read by other libraries.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner
from pyiceberg.table import StaticTable

from slackwater.config.new_file import SINKS
from slackwater.demo.load import CHANGE_STREAM, Load, ddl
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from tests.emulators import NewDatabase
from tests.install.environments import Environment, new_environment, run
from tests.kafka_broker import kafka_broker as kafka_broker
from tests.kafka_broker import read_topics, spark_conf
from tests.truths import truth_of

TABLES = ("Customers", "Orders", "Payments")
WITHIN_S = 300
# Of these sinks the dialect decides nothing that it does not decide of the others.
ALIKE = ("json", "orc", "iceberg", "spark")
CASES = [
    pytest.param(
        sink,
        dialect,
        id=f"{sink}-{dialect.value}",
        marks=[pytest.mark.long] if dialect is Dialect.POSTGRESQL and sink in ALIKE else [],
    )
    for sink in SINKS
    for dialect in Dialect
]


@dataclass(frozen=True)
class Home:
    """A user's folder, the installed program, and what its commands find in the environment."""

    folder: Path
    program: Path
    variables: dict[str, str]

    def command(self, *arguments: str) -> str:
        return run(str(self.program), *arguments, cwd=self.folder, variables=self.variables)


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
def running(home: Home) -> Iterator[Path]:
    """Run the pipeline of the folder's file; yield its output as soon as its page is served."""
    output = home.folder.parent / "output"
    dropped = ("PYTHONPATH", "PYSPARK_PYTHON")
    environ = {k: v for k, v in os.environ.items() if k not in dropped} | home.variables
    with (
        output.open("wb") as file,
        subprocess.Popen(
            [str(home.program), "run"],
            cwd=home.folder,
            env=environ,
            stdout=file,
            stderr=file,
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


def await_(is_so: Callable[[], bool], output: Path) -> None:
    until = time.monotonic() + WITHIN_S
    while not is_so():
        assert time.monotonic() < until, output.read_text()[-5_000:]
        time.sleep(0.5)


@pytest.mark.parametrize(("sink", "dialect"), CASES)
def test_what_init_writes_lands_every_change_since_the_command(
    sink: str,
    dialect: Dialect,
    home: Home,
    new_database: NewDatabase,
    request: pytest.FixtureRequest,
) -> None:
    stream = new_database(dialect, statements(dialect, sink))
    connection, load = Connection(stream), Load(stream, dialect, seed=5)
    load.run(transactions_per_second=20, seconds=0.5)
    name = CHANGE_STREAM.lower()
    names = ("--project", stream.project, "--instance", stream.instance)
    options = [*names, "--database", stream.database, "--sink", sink]
    if sink == "kafka":
        options += ["--kafka-servers", request.getfixturevalue("kafka_broker")]
        # The broker remembers the positions of the other dialect's pipeline.
        name = f"{CHANGE_STREAM.lower()}-{dialect.value.lower()}"
        options += ["--pipeline", name]
        # A jar that the sink needs is not in every Maven repository.
        home.variables["SLACKWATER_SPARK_CONF"] = json.dumps(spark_conf())
    home.command("init", *options)
    checked = home.command("check").splitlines()
    assert len(checked) >= 5
    assert not [line for line in checked if not line.startswith("ok ")]
    output = home.folder / "out" / name
    seen = seen_changes(sink, output, request)
    before = seen()
    with running(home) as said:
        # Spark is starting.
        begun_ns = connection.strong_read_timestamp_ns()
        written = load.run(transactions_per_second=20, seconds=1).transactions
        if sink == "kafka":
            # A message has no transaction, and is one of a row.
            truth = truth_of(stream, begun_ns, connection.strong_read_timestamp_ns(), dialect)
            written = sum(len(record.mods) for record in truth.records)
        if sink == "mirror":
            await_(lambda: mirrors(output) == spanners(stream, dialect), said)
        elif sink == "spark":
            await_(lambda: said.read_text().count(" INSERT|") > 0, said)
        else:
            await_(lambda: len(seen() - before) >= written, said)
    if sink not in ("mirror", "spark"):
        assert len(seen() - before) == written
    assert "resolving dependencies" not in said.read_text()
    made = (home.folder / "out").rglob("*")
    assert [path for path in made if path.lstat().st_mode & 0o077] == [], "others can read it"
    shown = home.command("status").splitlines()
    assert shown[0].startswith(f"{name}: Is not running")


def statements(dialect: Dialect, sink: str) -> list[str]:
    """Return the demo's schema, with a stream that captures what the sink needs."""
    *tables, stream = ddl(dialect)
    clause = "WITH" if dialect is Dialect.POSTGRESQL else "OPTIONS"
    whole_rows = f" {clause} (value_capture_type = 'NEW_ROW')" if sink == "kafka" else ""
    return [*tables, stream + whole_rows]


def seen_changes(sink: str, output: Path, request: pytest.FixtureRequest) -> Callable[[], set[str]]:
    """Return what reads the transactions that have landed, or Kafka's messages."""
    column = "server_transaction_id"
    if sink in ("parquet", "orc"):
        return lambda: (
            ids(ds.dataset(output / "changes", format=sink).to_table([column]))
            if list((output / "changes").glob("epoch=*"))
            else set()
        )
    if sink == "json":
        return lambda: {
            json.loads(line)[column]
            for file in (output / "changes").glob("epoch=*/*.json")
            for line in file.read_text().splitlines()
        }
    if sink == "delta":
        return lambda: of_delta(output / "changes", column)
    if sink == "changelogs":
        return lambda: set().union(
            *(of_delta(output / "changelogs" / table, column) for table in TABLES)
        )
    if sink == "iceberg":
        return lambda: of_iceberg(output / "changes", column)
    if sink != "kafka":
        return set
    servers = request.getfixturevalue("kafka_broker")
    return lambda: {
        f"{topic} {partition} {message.offset()}"
        for table in TABLES
        for (topic, partition), messages in read_topics(servers, table).items()
        for message in messages
        if topic == table
    }


def ids(table: pa.Table) -> set[str]:
    return set(table.column("server_transaction_id").to_pylist())


def of_delta(path: Path, column: str) -> set[str]:
    if not (path / "_delta_log" / f"{0:020}.json").exists():
        return set()
    return ids(DeltaTable(path).to_pyarrow_table(columns=[column]))


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


def spanners(stream: ChangeStream, dialect: Dialect) -> dict[str, list[str]]:
    client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
    database = client.instance(stream.instance).database(stream.database)
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
