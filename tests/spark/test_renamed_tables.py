"""Tables that take each other's names: no mirror states a low watermark at which it is wrong.

The epochs are read in this process, and owners die, as in test_rescans.
"""

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from google.api_core.exceptions import GoogleAPICallError
from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.state.rescan_models import Rescan, RescanState
from slackwater.state.rescans import rescans
from slackwater.testing.emulator_database import database_of, update_ddl
from tests.proofs.mirrors import KINDS, Kind, mirror_settings
from tests.spark.pipeline_owner import Owner
from tests.support.changing import renamed, spell
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop
from tests.support.mirror_looks import at_watermark, mirrored_rows
from tests.support.table_rows import comparable, spanner_rows

EPOCHS_MAX: Final = 80
COLUMNS: Final = ("Id", "Name", "Size")
ROWS: Final = 30
# So few that each table has several chunks.
ROWS_A_CHUNK: Final = 25
PARTITION_ALIVE_S = 20


def created(dialect: Dialect, name: str, *, is_strange: bool = False) -> str:
    """Return the CREATE TABLE of one of two forms: the key and a type are others in the second."""
    columns = "`Id` INT64 NOT NULL, `Name` STRING(MAX), `Size` INT64"
    key = "`Id`"
    if is_strange:
        columns = "`Id` INT64 NOT NULL, `Name` STRING(36) NOT NULL, `Size` STRING(MAX)"
        key = "`Name`, `Id`"
    if dialect is Dialect.POSTGRESQL:
        return spell(dialect, f"CREATE TABLE `{name}` ({columns}, PRIMARY KEY ({key}))")
    return f"CREATE TABLE `{name}` ({columns}) PRIMARY KEY ({key})"


class Tables:
    """Tables that are renamed; it knows which one has which name."""

    def __init__(self, stream: ChangeStream, dialect: Dialect) -> None:
        self._database = database_of(stream, dialect)
        self.stream, self.dialect = stream, dialect
        self._choice = random.Random(3)
        self._columns = 0
        self.is_strange = {"A": False, "B": False, "C": True}

    def write(self, rows: int = 3) -> None:
        """Write rows of each table, and delete one."""
        with self._database.batch() as batch:
            for name, is_strange in self.is_strange.items():
                numbers = self._choice.sample(range(1_000), rows)
                values = [
                    [number, f"{name}{number % 7}", f"{number}" if is_strange else number]
                    for number in numbers
                ]
                batch.insert_or_update(name, ("Id", "Name", "Size"), values)

    def rename(self, *steps: str) -> None:
        """Give tables other names in one request, which the emulator carries out at one time."""
        for step in steps:
            former, name = step.split()
            self.is_strange[name] = self.is_strange.pop(former)
        self.ddl(*renamed(*steps))

    def _have_recorded(self, name: str) -> None:
        """Alter a table: the emulator has no records of a name that is new to the stream before."""
        self._columns += 1
        self.ddl(f"ALTER TABLE `{name}` ADD COLUMN `Extra{self._columns}` INT64")

    def ddl(self, *statements: str) -> None:
        update_ddl(self.stream, [spell(self.dialect, statement) for statement in statements])

    def steps(self) -> Iterator[None]:
        """Rename tables in each of the ways that there are, with changes between."""
        self.rename("A X", "B A", "X B")
        yield
        # While they are being read: other columns, another key; another name; there and back.
        self.rename("A X", "C A", "X C")
        self.write()
        self.rename("B D")
        self._have_recorded("D")
        self.rename("C X")
        self.write()
        self.rename("X C")
        yield
        # Two names are taken over, one of them by a new table.
        del self.is_strange["A"]
        self.ddl("DROP TABLE `A`")
        self.rename("D A")
        self.rename("C D")
        self._have_recorded("D")
        self.ddl(created(self.dialect, "C"))
        self.is_strange["C"] = False
        yield


def require_equal(folder: Path, tables: Tables) -> None:
    """Compare each mirror with its table at the low watermark that it states."""
    for name in tables.is_strange:
        seen = at_watermark(folder / name)
        if seen is None:
            continue
        mirrored, _ = mirrored_rows(seen)
        try:
            expected = spanner_rows(tables.stream, tables.dialect, name, seen.watermark_ns)
        except GoogleAPICallError as error:
            if not re.search("not found|does not exist", str(error), re.IGNORECASE):
                raise
            # Nothing had the name then.
            continue
        rows = [{column: comparable(row.get(column)) for column in COLUMNS} for row in mirrored]
        expected = [{column: row[column] for column in COLUMNS} for row in expected]
        assert sorted(rows, key=repr) == sorted(expected, key=repr), (name, seen.watermark_ns)


def ended(owner: Owner) -> list[Rescan]:
    """Return the requests, if each has come to an end."""
    listed = rescans(owner.loop.store, "orders")
    return [] if any(one.state is RescanState.RUNNING for one in listed) else listed


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize("kind", KINDS[:2], ids=str)
def test_mirrors_follow_tables_that_take_each_others_names(
    kind: Kind,
    session: SparkSession,
    new_database: NewDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slackwater.pipeline.epochs.rescanner.FIRST_ROWS", ROWS_A_CHUNK)
    monkeypatch.setattr(
        "slackwater.pipeline.epochs.rescanner.next_rows", lambda rows, seconds: rows
    )
    # Otherwise a table without changes would state its low watermark once a minute.
    monkeypatch.setattr("slackwater.spark_sink.sinks.mirrors._PUBLISH_ALL_EVERY_S", 0.0)
    dialect, capture, deletes, table_format = kind
    word = "WITH" if dialect is Dialect.POSTGRESQL else "OPTIONS"
    ddl = [created(dialect, name, is_strange=name == "C") for name in "ABC"]
    ddl.append(f"CREATE CHANGE STREAM s FOR ALL {word} (value_capture_type = '{capture}')")
    stream = new_database(dialect, ddl, "s")
    tables = Tables(stream, dialect)
    values = mirror_settings(stream, tmp_path, 0, deletes, table_format)
    values["source"] |= {"start": "now", "initial_scan": "no", "new_tables": "scan"}
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(values))
    settings = Settings.model_validate(values)
    loop = EpochLoop(stream, settings.state.url, start_ns=0, options={"start": "now"})
    loop.epoch()
    owner = Owner(session, settings, loop)
    choice, steps = random.Random(5), tables.steps()
    tables.write(ROWS)
    try:
        for number in range(EPOCHS_MAX):
            tables.write()
            if number and (number % 3 == 0 or ended(owner)) and next(steps, steps) is steps:
                break
            dies = choice.random() < 0.2
            owner.epoch(number, dies=dies)
            require_equal(tmp_path / "mirrors", tables)
            if dies:
                resumed = EpochLoop(stream, settings.state.url, start_ns=0, resume=owner.loop)
                owner.close()
                owner = Owner(session, settings, resumed)
        for number in range(EPOCHS_MAX, 2 * EPOCHS_MAX):
            owner.epoch(number, dies=False)
            require_equal(tmp_path / "mirrors", tables)
            if ended(owner):
                break
        requested: dict[str, Any] = {one.table: one for one in rescans(owner.loop.store, "orders")}
    finally:
        owner.close()
    assert {name: requested[name].state for name in tables.is_strange} == dict.fromkeys(
        tables.is_strange, RescanState.DONE
    )
    verified = slackwater("verify", "-c", str(config))
    assert verified.returncode == 0, verified.stdout
    assert verified.stdout.count("equal") == len(tables.is_strange), verified.stdout
