"""A mirror in BigQuery by the commands: scanned, compared, damaged by others, and repaired."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from slackwater.reader.change_stream import Dialect
from tests.support import mixed_load
from tests.support.bigquery import DATASET, PROJECT, BigQueryServer, Door
from tests.support.bigquery import door as door
from tests.support.bigquery import server as server
from tests.support.command_line import output_of, slackwater
from tests.support.emulators import NewDatabase
from tests.support.mixed_load import MixedLoad
from tests.support.services import settings


@pytest.mark.usefixtures("commands_here")
def test_a_mirror_is_scanned_and_what_others_damage_is_found_and_repaired(
    new_database: NewDatabase,
    server: BigQueryServer,
    door: Door,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    ddl = mixed_load.ddl(dialect, "OLD_AND_NEW_VALUES")
    stream = new_database(dialect, ddl, mixed_load.CHANGE_STREAM)
    load = MixedLoad(stream, dialect, seed=3)
    for _ in range(60):
        load.transaction()
    values = settings(stream, tmp_path, "now")
    values["sink"] = {
        "kind": "mirror",
        "format": "bigquery",
        "path": f"bq://{PROJECT}/{DATASET}",
        "checkpoint": "checkpoint",
        "storage_options": server.options(door),
    }
    monkeypatch.chdir(tmp_path)
    Path("slackwater.yaml").write_text(yaml.safe_dump(values))

    def command(*words: str) -> str:
        return output_of(slackwater(*words))

    def require_equal() -> None:
        shown = [json.loads(line) for line in command("verify", "--json").splitlines()]
        assert {one["table"] for one in shown} == set(mixed_load.TABLES)
        assert all(one["is_equal"] for one in shown), shown

    command("run", "--until-caught-up")
    require_equal()
    for _ in range(20):
        load.transaction()
    singers = f"`{PROJECT}.{DATASET}.Singers`"
    server.query(f"UPDATE {singers} SET Counts = [7] WHERE Id = (SELECT MIN(Id) FROM {singers})")
    server.query(f"DELETE FROM {singers} WHERE Id = (SELECT MAX(Id) FROM {singers})")
    damaged = slackwater("verify", "--table", "Singers", "--repair")
    assert damaged.returncode == 1, damaged.stderr
    assert "rescan of Singers requested" in damaged.stderr
    command("run", "--until-caught-up")
    require_equal()
