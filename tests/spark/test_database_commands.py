"""Tables in databases by the commands: mirrors that others damage, and Datastream's columns."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.commands.sql_views import views
from slackwater.config.load import load_settings
from slackwater.errors import SettingsError
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.tables.in_postgresql.database import Database
from slackwater.timestamp import format_rfc3339
from tests.outputs.in_bigquery import BigQueryLooker
from tests.support import mixed_load
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.command_line import in_own_process, output_of, slackwater
from tests.support.ducklakes import Lake
from tests.support.emulators import NewDatabase
from tests.support.mirror_looks import Seen
from tests.support.mixed_load import MixedLoad
from tests.support.object_stores import s3
from tests.support.postgres import new_postgres_url as new_postgres_url
from tests.support.postgres import postgres_server as postgres_server
from tests.support.services import settings

PARTITION_ALIVE_S = 20

# Datastream's documentation, "BigQuery destination": those of the write mode append-only.
DATASTREAMS_COLUMNS = {
    "UUID",
    "SOURCE_TIMESTAMP",
    "CHANGE_SEQUENCE_NUMBER",
    "CHANGE_TYPE",
    "SORT_KEYS",
}


def write_settings(stream: ChangeStream, folder: Path, start: str, **sink: Any) -> Path:
    """Write the settings of a pipeline into BigQuery in a folder, and return their file."""
    values = settings(stream, folder, start)
    place = {"path": f"bq://{PROJECT}/{DATASET}", "checkpoint": "checkpoint"}
    values["sink"] = {"format": "bigquery", **place, **sink}
    path = folder / "slackwater.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


@dataclass(frozen=True)
class Destination:
    """Mirrors in a database.

    Attributes:
        sink: what the settings have of it.
        run: runs a statement there.
        table: the name of a table in its SQL.
    """

    sink: dict[str, Any]
    run: Callable[[str], object]
    table: str


@pytest.fixture(
    params=[
        "postgresql",
        *(pytest.param(of, marks=pytest.mark.long) for of in ("transaction", "table", "ducklake")),
    ]
)
def destination(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Destination]:
    if request.param == "ducklake":
        lake = {"format": "ducklake", "path": "lake"}
        yield Destination(lake, Lake.in_folder(tmp_path / "lake").run, '"Singers"')
        return
    if request.param == "postgresql":
        url = request.getfixturevalue("new_postgres_url")().replace("+psycopg", "")
        with closing(Database(url, "tests")) as database:
            yield Destination({"format": "postgresql", "path": url}, database.run, '"Singers"')
        return
    server: BigQueryServer = request.getfixturevalue("server")
    options = server.options(request.getfixturevalue("door"))
    dataset = f"of_{request.param}"
    server.client.create_dataset(dataset)
    place = {"path": f"bq://{PROJECT}/{dataset}", "storage_options": options}
    sink = {**place, "consistency": request.param}
    yield Destination(sink, server.query, f"`{PROJECT}.{dataset}.Singers`")


@pytest.mark.usefixtures("commands_here")
def test_a_mirror_is_scanned_and_what_others_damage_is_found_and_repaired(
    new_database: NewDatabase,
    destination: Destination,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    ddl = mixed_load.ddl(dialect, "NEW_ROW")
    stream = new_database(dialect, ddl, mixed_load.CHANGE_STREAM)
    load = MixedLoad(stream, dialect, seed=3)
    for _ in range(60):
        load.transaction()
    write_settings(stream, tmp_path, "now", kind="mirror", **destination.sink)
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> str:
        return output_of(slackwater(*words))

    command("run", "--until-caught-up")
    for _ in range(20):
        load.transaction()
    singers, key, counts = destination.table, "Id", "Counts = [7]"
    if singers.startswith('"'):
        is_lake = destination.sink.get("format") == "ducklake"
        key, counts = '"Id"', f'"Counts" = {"[7]" if is_lake else "ARRAY[7]"}'
    for change, of in (
        (f"UPDATE {singers} SET {counts}", "MIN"),
        (f"DELETE FROM {singers}", "MAX"),
    ):
        destination.run(f"{change} WHERE {key} = (SELECT {of}({key}) FROM {singers})")
    damaged = slackwater("verify", "--table", "Singers", "--repair")
    assert damaged.returncode == 1, damaged.stderr
    # Of what was scanned, and of the changes since then, nothing else differs.
    assert "1 missing, 0 unexpected, 1 different" in damaged.stdout
    assert "rescan of Singers requested" in damaged.stderr
    command("run", "--until-caught-up")
    shown = [json.loads(line) for line in command("verify", "--json").splitlines()]
    assert {one["table"] for one in shown} == set(mixed_load.TABLES)
    assert all(one["is_equal"] for one in shown), shown


@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize(
    "capture", ["NEW_ROW", pytest.param("NEW_ROW_AND_OLD_VALUES", marks=pytest.mark.long)]
)
def test_datastreams_rows_of_a_changelog_tell_each_row_before_and_after(
    new_database: NewDatabase,
    server: BigQueryServer,
    door: Door,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capture: str,
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect, mixed_load.ddl(dialect, capture), mixed_load.CHANGE_STREAM)
    dataset = f"of_{capture.lower()}"
    server.client.create_dataset(dataset)
    with closing(Connection(stream)) as connection:
        start = format_rfc3339(connection.strong_read_timestamp_ns())
    load = MixedLoad(stream, dialect, seed=3)
    for _ in range(60):
        load.transaction()
    path, options = f"bq://{PROJECT}/{dataset}", server.options(door)
    write_settings(stream, tmp_path, start, kind="changelogs", path=path, storage_options=options)
    monkeypatch.chdir(tmp_path)
    output_of(slackwater("run", "--until-caught-up"))
    for statement in filter(str.strip, output_of(slackwater("sql", "view")).split(";\n")):
        server.query(statement)
    looker = BigQueryLooker(server, stream, dialect)
    for table in mixed_load.TABLES:
        of_table = f"`{PROJECT}.{dataset}._datastream_{table.replace('.', '_')}`"
        changes = server.query(f"SELECT * FROM {of_table}")
        metadata = [change["datastream_metadata"] for change in changes]
        assert len({one["UUID"] for one in metadata}) == len(changes)
        assert all(set(one) == DATASTREAMS_COLUMNS for one in metadata)
        rows = replayed(changes, mixed_load.KEYS[table], is_whole=capture != "NEW_ROW")
        assert looker._require_equal(table, Seen(rows, None))[0] > 1


def replayed(
    changes: list[dict[str, Any]], key: Sequence[str], *, is_whole: bool
) -> list[dict[str, Any]]:
    """Return the rows that changes leave; each row that a change ends was there as it says."""
    there: dict[Any, dict[str, Any]] = {}
    for change in sorted(changes, key=lambda one: one["datastream_metadata"]["SORT_KEYS"]):
        metadata = change.pop("datastream_metadata")
        one = tuple(change[name] for name in key)
        kind = metadata["CHANGE_TYPE"]
        before = None if kind == "UPDATE-INSERT" and is_whole else there.pop(one, None)
        if kind in ("UPDATE-DELETE", "DELETE"):
            assert before is not None
            assert not is_whole or change == before
        else:
            assert (before is not None) == (kind == "UPDATE-INSERT" and not is_whole)
            there[one] = change
    return list(there.values())


def test_datastreams_columns_are_not_made_of_parts_of_rows(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    ddl = mixed_load.ddl(dialect, "OLD_AND_NEW_VALUES")
    stream = new_database(dialect, ddl, mixed_load.CHANGE_STREAM)
    path = write_settings(stream, tmp_path, "now", kind="changelogs")
    with pytest.raises(SettingsError, match="OLD_AND_NEW_VALUES, which have parts of rows"):
        next(views(load_settings(path), ()))


@pytest.mark.long
def test_a_lake_in_a_bucket_by_init_has_its_catalog_in_the_pipelines_folder(
    new_database: NewDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    stream = new_database(dialect, mixed_load.ddl(dialect, "NEW_ROW"), mixed_load.CHANGE_STREAM)
    load = MixedLoad(stream, dialect, seed=3)
    # All paths of the file are relative to the folder of the command.
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slackwater.yaml"
    names = ("--project", stream.project, "--instance", stream.instance)
    with s3() as store:
        variables = {
            "SPANNER_EMULATOR_HOST": stream.endpoint.target,
            "SLACKWATER_SINK_STORAGE_OPTIONS": json.dumps(store.options),
        }
        place = ("--sink", "ducklake", "--pipeline", "orders", "--path", f"{store.path}/orders")

        def command(*words: str) -> str:
            return output_of(in_own_process(file, variables, *words))

        command("init", *names, "--database", stream.database, *place)
        assert "ok    sink: ducklake in" in command("check")
        assert [path.name for path in tmp_path.iterdir()] == [file.name]
        for _ in range(2):
            for _ in range(30):
                load.transaction()
            command("run", "--until-caught-up")
        shown = [json.loads(line) for line in command("verify", "--json").splitlines()]
        assert {proof["is_equal"] for proof in shown} == {True}
        assert store.names("orders/lake/data_files/")
    assert {path.name for path in tmp_path.iterdir()} == {file.name, "orders"}
    made = {path.name.partition("-")[0] for path in (tmp_path / "orders").iterdir()}
    assert made == {"catalog.sqlite", "state.db"}
