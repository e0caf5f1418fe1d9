"""A value that a mirror can't have stops the pipeline, or its record is set aside whole."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pytest

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.records import ColumnType, DataChangeRecord, Mod
from slackwater.timestamp import format_rfc3339
from tests.proofs.mirrors import mirror_settings
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

# What Spanner does not send.
BAD, GOOD = "yesterday", "2026-01-31T09:00:00Z"
ROWS: list[tuple[str | None, list[str | None] | None]] = [
    (GOOD, [GOOD, None]),
    (BAD, None),
    (None, [GOOD, BAD]),
    (None, []),
]
COLUMNS = tuple(
    ColumnType(name, json.dumps(kind), name == "Id", place)
    for place, (name, kind) in enumerate(
        {
            "Id": {"code": "INT64"},
            "Moment": {"code": "TIMESTAMP"},
            "Moments": {"code": "ARRAY", "array_element_type": {"code": "TIMESTAMP"}},
        }.items(),
        1,
    )
)


def inserted(number: int, at_us: int) -> DataChangeRecord:
    moment, moments = ROWS[number]
    new_values = json.dumps({"Moment": moment, "Moments": moments})
    return DataChangeRecord(
        at_us * 1_000,
        f"t{number}",
        "00000000",
        True,
        "T",
        COLUMNS,
        (Mod(f'{{"Id":"{number + 1}"}}', new_values, "{}"),),
        "INSERT",
        "NEW_ROW",
        1,
        1,
        "",
        False,
    )


@pytest.mark.long
def test_bad_records_stop_a_mirror_or_are_set_aside(tmp_path: Path) -> None:
    dialect = Dialect.GOOGLE_STANDARD_SQL
    start_us = time.time_ns() // 1_000 - 10_000_000
    records = tuple(inserted(number, start_us + 1 + number) for number in range(len(ROWS)))
    partition = ScriptedPartition("p", start_us - 1_000_000, rows=ListedRows(records, dialect))
    stream = ChangeStream("test-project", "test", "db", CHANGE_STREAM)
    pipeline_settings = mirror_settings(stream, tmp_path, start_us * 1_000, "apply")
    pipeline_settings["source"]["initial_scan"] = "no"
    with synthetic_process(Script(dialect, (partition,))) as host:
        code, log = run(pipeline_settings, tmp_path, host)
        assert code == 2
        assert "T: a value of column Moment" in log
        assert "sink.bad_records to dead_letter" in log
        pipeline_settings["sink"]["bad_records"] = "dead_letter"
        code, log = run(pipeline_settings, tmp_path, host)
        assert code == 0, log
    mirror = deltalake.DeltaTable(tmp_path / "mirrors" / "T").to_pyarrow_table().to_pylist()
    at = datetime(2026, 1, 31, 9, tzinfo=UTC)
    assert sorted(mirror, key=lambda row: row["Id"]) == [
        {"Id": 1, "Moment": at, "Moments": [at, None]},
        {"Id": 4, "Moment": None, "Moments": []},
    ]
    lines = (tmp_path / "mirrors" / "_dead_letters").glob("*/*.json")
    letters = [json.loads(text) for path in lines for text in path.read_text().splitlines()]
    aside = sorted((json.loads(letter["key"])["Id"], *letter["bad_columns"]) for letter in letters)
    assert aside == [("2", "Moment"), ("3", "Moments")]
    for letter in letters:
        number = int(json.loads(letter["key"])["Id"]) - 1
        assert letter["table_name"] == letter["record"]["table_name"] == "T"
        assert letter["record"]["mods"][0]["keys"] == letter["key"]
        at_ns = records[number].commit_timestamp_ns
        assert letter["record"]["commit_timestamp"] == format_rfc3339(at_ns)


def run(pipeline_settings: dict[str, Any], tmp_path: Path, host: str) -> tuple[int, str]:
    service = Service(pipeline_settings, tmp_path, os.environ | {"SPANNER_EMULATOR_HOST": host})
    service.start("--until-caught-up")
    return service.wait(120), service.log.read_text()
