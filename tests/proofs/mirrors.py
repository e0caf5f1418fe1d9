"""Mirrors under random changes and kills, compared with their tables again and again.

Meanwhile a column is added, has values, is dropped, and comes back with another type.

python -m tests.proofs.mirrors --changes 2000 --looks 10
python -m tests.proofs.mirrors --in catalog: in Iceberg's REST catalog, whose tables are in S3
python -m tests.proofs.mirrors --in nessie: the same in Nessie, which needs Java 21
python -m tests.proofs.mirrors --in postgresql
python -m tests.proofs.mirrors --in ducklake
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.sinks.registry import parse_sink_settings
from slackwater.testing.emulator_database import update_ddl
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from tests.outputs.in_ducklake import DuckLakeLooker
from tests.outputs.in_postgresql import PostgresqlLooker
from tests.support import mixed_load
from tests.support.changing import spell
from tests.support.ducklakes import Lake
from tests.support.emulators import own_database
from tests.support.mirror_looks import ADDED, Looker
from tests.support.mixed_load import SINGERS, MixedLoad
from tests.support.postgres import running_server
from tests.support.rest_catalog import rest_catalog
from tests.support.services import settings

Kind = tuple[Dialect, str, str, str]
KINDS: list[Kind] = [
    (Dialect.GOOGLE_STANDARD_SQL, "OLD_AND_NEW_VALUES", "apply", "delta"),
    (Dialect.POSTGRESQL, "NEW_ROW", "mark", "iceberg"),
]
MORE_KINDS: list[Kind] = [
    (Dialect.GOOGLE_STANDARD_SQL, "NEW_VALUES", "apply", "iceberg"),
    (Dialect.POSTGRESQL, "NEW_ROW", "mark", "delta"),
]


# After a number of looks.
_SCHEMA_CHANGES: Final[Mapping[int, str]] = {
    1: f"ALTER TABLE `{SINGERS}` ADD COLUMN `{ADDED}` STRING(10)",
    4: f"ALTER TABLE `{SINGERS}` DROP COLUMN `{ADDED}`",
    5: f"ALTER TABLE `{SINGERS}` ADD COLUMN `{ADDED}` INT64",
}
_VALUES: Final[Mapping[int, str]] = {2: "'text'", 6: "7"}


@dataclass(frozen=True)
class Destination:
    """Where mirrors are.

    Attributes:
        table_format: their format.
        sink, conf: more of the sections sink and spark.conf of the settings.
        looker: makes what compares them; None if they are in folders.
    """

    table_format: str = "delta"
    sink: Mapping[str, Any] = field(default_factory=dict)
    conf: Mapping[str, str] = field(default_factory=dict)
    looker: Callable[[ChangeStream, Dialect], Looker] | None = None


def mirror_settings(
    stream: ChangeStream,
    folder: Path,
    start_ns: int,
    deletes: str = "apply",
    table_format: str = "delta",
) -> dict[str, Any]:
    values = settings(stream, folder, format_rfc3339(start_ns))
    values["sink"] |= {
        "kind": "mirror",
        "format": table_format,
        "path": str(folder / "mirrors"),
        "deletes": deletes,
    }
    return values


def change_schema(stream: ChangeStream, dialect: Dialect, number: int, load: MixedLoad) -> None:
    """Change the table of singers after a number of looks, or the values of the new column."""
    if (statement := _SCHEMA_CHANGES.get(number)) is not None:
        update_ddl(stream, [spell(dialect, statement)])
    if (value := _VALUES.get(number)) is not None:
        load.execute(spell(dialect, f"UPDATE `{SINGERS}` SET `{ADDED}` = {value} WHERE TRUE"))


def run(
    stream: ChangeStream,
    dialect: Dialect,
    folder: Path,
    *,
    deletes: str,
    destination: Destination,
    changes: int,
    looks: int,
    kills_after: Collection[int],
    before: str = sys.executable,
) -> int:
    """Change, kill and compare; return how many rows the mirrors keep marked as deleted."""
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    table_format = destination.table_format
    pipeline_settings = mirror_settings(stream, folder, start_ns, deletes, table_format)
    pipeline_settings["sink"] |= destination.sink
    pipeline_settings["spark"].setdefault("conf", {}).update(destination.conf)
    service = Service(pipeline_settings, folder, os.environ)
    # The Python that runs the service up to the first kill.
    service.python = before
    load = MixedLoad(stream, dialect, seed=7)
    has_looked = threading.Event()

    # The emulator refuses a schema change during a transaction.
    writing = threading.Lock()

    def write() -> None:
        while load.changes < changes or not has_looked.is_set():
            with writing:
                load.transaction()
            time.sleep(0.02 if load.changes < changes else 0.1)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    service.start()
    made = destination.looker
    looker = made(stream, dialect) if made else Looker(folder / "mirrors", stream, dialect)
    try:
        for number in range(looks):
            looker.look()
            with writing:
                change_schema(stream, dialect, number, load)
            if number in kills_after:
                # In the middle of an epoch: each takes longer than this.
                time.sleep(random.Random(number).uniform(0.2, 1.0))
                service.kill()
                service.python = sys.executable
                service.start()
        has_looked.set()
        writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=400)
        assert service.drain() == 0, service.log.read_text()[-2_000:]
    finally:
        has_looked.set()
        service.kill()
        connection.close()
    looker.look_at_the_end()
    logged = Path(parse_sink_settings(pipeline_settings["sink"]).place_path)
    lines = sorted((logged / "_watermarks").glob("*.json"))[-1].read_text()
    # Whole microseconds, half of one before the low watermark.
    assert parse_rfc3339(json.loads(lines.splitlines()[-1])["low_watermark"]) + 1_000 > end_ns
    return looker.marked


@contextmanager
def in_folders(table_format: str, folder: Path) -> Iterator[Destination]:
    del folder
    yield Destination(table_format)


@contextmanager
def in_catalog(
    table_format: str, folder: Path, *, server: str = "iceberg"
) -> Iterator[Destination]:
    del table_format
    with rest_catalog(folder, server=server) as catalog:

        def looker(stream: ChangeStream, dialect: Dialect) -> Looker:
            return Looker(folder / "mirrors", stream, dialect, catalog)

        yield Destination("iceberg", {"catalog": catalog.setting}, catalog.spark_conf, looker)


@contextmanager
def in_postgresql(table_format: str, folder: Path) -> Iterator[Destination]:
    del table_format, folder
    with running_server() as url:
        url = url.replace("+psycopg", "")

        def looker(stream: ChangeStream, dialect: Dialect) -> Looker:
            return PostgresqlLooker(url, stream, dialect)

        yield Destination("postgresql", {"path": url}, looker=looker)


@contextmanager
def in_ducklake(table_format: str, folder: Path) -> Iterator[Destination]:
    del table_format

    def looker(stream: ChangeStream, dialect: Dialect) -> Looker:
        return DuckLakeLooker(Lake.in_folder(folder / "lake"), stream, dialect)

    yield Destination("ducklake", {"path": str(folder / "lake")}, looker=looker)


PLACES: Final[Mapping[str, Callable[[str, Path], AbstractContextManager[Destination]]]] = {
    "folders": in_folders,
    "catalog": in_catalog,
    "nessie": partial(in_catalog, server="nessie"),
    "postgresql": in_postgresql,
    "ducklake": in_ducklake,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--changes", type=int, default=2_000)
    parser.add_argument("--looks", type=int, default=10)
    parser.add_argument("--in", dest="place", choices=list(PLACES), default="folders")
    options = parser.parse_args()
    kinds = KINDS + MORE_KINDS
    if options.place in ("catalog", "nessie"):
        kinds = [kind for kind in kinds if kind[-1] == "iceberg"]
    for dialect, capture, deletes, table_format in kinds:
        statements = mixed_load.ddl(dialect, capture)
        with (
            own_database(dialect, statements, mixed_load.CHANGE_STREAM) as stream,
            tempfile.TemporaryDirectory() as name,
            PLACES[options.place](table_format, Path(name)) as destination,
        ):
            kills_after = range(2, options.looks, 3)
            run(
                stream,
                dialect,
                Path(name),
                deletes=deletes,
                destination=destination,
                changes=options.changes,
                looks=options.looks,
                kills_after=kills_after,
            )
            done = f"equal at {options.looks} looks, {len(kills_after)} kills"
            print(f"{dialect}, {capture}, {destination.table_format}: {done}", flush=True)


if __name__ == "__main__":
    main()
