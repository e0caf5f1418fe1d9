"""A value that a mirror can't have stops the pipeline, or its record is set aside whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import deltalake
import pytest
from google.auth.credentials import AnonymousCredentials
from google.cloud import spanner

from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import datetime_to_rfc3339
from tests.emulators import NewDatabase
from tests.mirrors import mirror_settings
from tests.table_rows import comparable, spanner_rows

# The emulator's records write the year 1 with one digit, which is no timestamp of Spark's. A NULL
# among an array's timestamps would end the emulator itself.
BAD, GOOD = "0001-01-01T00:00:00Z", "2026-01-31T09:00:00Z"
NAMES = ("Id", "Moment", "Moments")
ROWS: list[list[Any]] = [
    [1, GOOD, [GOOD, GOOD]],
    [2, BAD, None],
    [3, None, [GOOD, BAD]],
    [4, None, []],
]


@pytest.mark.long
def test_bad_records_stop_a_mirror_or_are_set_aside(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    columns = "Id INT64, Moment TIMESTAMP, Moments ARRAY<TIMESTAMP>"
    stream = new_database(
        statements=[
            f"CREATE TABLE T ({columns}) PRIMARY KEY (Id)",
            "CREATE CHANGE STREAM S FOR T",
        ],
        change_stream="S",
    )
    client = spanner.Client(project=stream.project, credentials=AnonymousCredentials())
    database = client.instance(stream.instance).database(stream.database)
    start_ns = Connection(stream).strong_read_timestamp_ns()
    commits = {}
    for row in ROWS:
        with database.batch() as batch:
            batch.insert("T", NAMES, [row])
        commits[str(row[0])] = datetime_to_rfc3339(batch.committed)
    pipeline_settings = mirror_settings(stream, tmp_path, start_ns, "apply")
    pipeline_settings["source"]["initial_scan"] = "no"
    code, log = run(pipeline_settings, tmp_path)
    assert code == 2
    assert "T: a value of column Moment" in log
    assert "sink.bad_records to dead_letter" in log
    pipeline_settings["sink"]["bad_records"] = "dead_letter"
    code, log = run(pipeline_settings, tmp_path)
    assert code == 0, log
    mirror = deltalake.DeltaTable(tmp_path / "mirrors" / "T").to_pyarrow_table().to_pylist()
    mirror_rows = [{name: comparable(value) for name, value in row.items()} for row in mirror]
    expected = spanner_rows(stream, Dialect.GOOGLE_STANDARD_SQL, "T")
    assert sorted(mirror_rows, key=repr) == sorted(
        (row for row in expected if row["Id"] in (1, 4)), key=repr
    )
    lines = (tmp_path / "mirrors" / "_dead_letters").glob("*/*.json")
    letters = [json.loads(text) for path in lines for text in path.read_text().splitlines()]
    aside = sorted((json.loads(letter["key"])["Id"], *letter["bad_columns"]) for letter in letters)
    assert aside == [("2", "Moment"), ("3", "Moments")]
    for letter in letters:
        assert letter["table_name"] == letter["record"]["table_name"] == "T"
        assert letter["record"]["mods"][0]["keys"] == letter["key"]
        assert letter["record"]["commit_timestamp"] == commits[json.loads(letter["key"])["Id"]]


def run(pipeline_settings: dict[str, Any], tmp_path: Path) -> tuple[int, str]:
    service = Service(pipeline_settings, tmp_path, os.environ)
    service.start("--until-caught-up")
    return service.wait(120), service.log.read_text()
