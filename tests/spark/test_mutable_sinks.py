"""Every kind of sink over a stream with mutable key ranges, where keys move between partitions."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import deltalake
import pytest
import yaml

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.records import DataChangeRecord
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.faults.mutable_seeded import expected_rows, require_equal, rows_of
from tests.simulation.mutable_history import random_mutable_history
from tests.support.command_line import slackwater
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.support.kafka_broker import read_topics
from tests.support.services import settings
from tests.synthetic.mutable import scripted
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

_STEPS = 40
_STEP_US = 500_000


def data_changes(script: Script) -> list[DataChangeRecord]:
    records = [
        record
        for partition in script.partitions
        if isinstance(partition.rows, ListedRows)
        for record in partition.rows.records
        if isinstance(record, DataChangeRecord)
    ]
    return sorted(records, key=lambda record: record.commit_timestamp_ns)


def sinks(folder: Path, broker: str) -> dict[str, dict[str, Any]]:
    kinds: dict[str, dict[str, Any]] = {
        "records": {"format": "parquet"},
        "flat": {"format": "json", "envelope": "flat"},
        "mirror": {"kind": "mirror", "format": "delta"},
        "typed": {"kind": "changelogs", "format": "delta"},
        "debezium": {
            "kind": "kafka",
            "envelope": "debezium",
            "topic": "mutable.{table}",
            "options": {"kafka.bootstrap.servers": broker},
        },
    }
    return {
        name: kind | {"path": str(folder / name), "checkpoint": str(folder / f"{name}-checkpoint")}
        for name, kind in kinds.items()
    }


@pytest.mark.usefixtures("commands_here")
def test_each_sink_has_every_change_of_a_stream_with_mutable_key_ranges(
    tmp_path: Path, kafka_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_us = time.time_ns() // 1_000 - (_STEPS + 20) * _STEP_US
    history = random_mutable_history(random.Random(5), steps=_STEPS)
    script = scripted(history, Dialect.GOOGLE_STANDARD_SQL, start_us=start_us, step_us=_STEP_US)
    stream = ChangeStream("test-project", "test", "db", CHANGE_STREAM)
    values = settings(stream, tmp_path, format_rfc3339((start_us + _STEP_US) * 1_000))
    values["source"]["end"] = format_rfc3339((start_us + _STEPS * _STEP_US) * 1_000)
    values["source"]["initial_scan"] = "no"
    del values["pipeline"], values["sink"]
    values["pipelines"] = {
        name: {"sink": sink} for name, sink in sinks(tmp_path, kafka_broker).items()
    }
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(values))
    with synthetic_process(script) as host:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", host)
        done = slackwater("run", "-c", str(config), "--until-caught-up")
    assert done.returncode == 0, done.stderr[-5_000:]
    first_us = start_us + _STEP_US - 1
    expected = expected_rows(script, first_us)
    assert len(expected) > 20
    require_equal(rows_of(read_changelog(tmp_path / "records")), expected)
    changes = [
        record for record in data_changes(script) if record.commit_timestamp_ns // 1_000 > first_us
    ]
    places = sorted((record.server_transaction_id, record.record_sequence) for record in changes)

    flat = [json.loads(line) for line in lines(tmp_path / "flat")]
    assert sorted((row["server_transaction_id"], row["record_sequence"]) for row in flat) == places

    latest = {record.mods[0].keys: record.mods[0].new_values for record in changes}
    rows = deltalake.DeltaTable(tmp_path / "mirror" / "Accounts").to_pyarrow_table().to_pylist()
    mirrored = {f'{{"Id":"{row["Id"]}"}}': f'{{"At":"{row["At"]}"}}' for row in rows}
    assert mirrored == latest
    assert len(rows) == len(latest)

    typed = deltalake.DeltaTable(tmp_path / "typed" / "Accounts").to_pyarrow_table().to_pylist()
    assert sorted((row["server_transaction_id"], row["record_sequence"]) for row in typed) == places
    assert all(f'{{"Id":"{row["key"]["Id"]}"}}' in latest for row in typed)

    messages = read_topics(kafka_broker, "mutable.")
    sources = [
        json.loads(message.value() or b"")["source"]
        for of_partition in messages.values()
        for message in of_partition
    ]
    of_kafka = [
        (
            source["server_transaction_id"],
            f"{source['record_sequence_prefix']}-{int(source['sequence']):08x}",
        )
        for source in sources
    ]
    assert sorted(of_kafka) == places


def lines(folder: Path) -> list[str]:
    return [
        line for file in folder.glob("epoch=*/part-*") for line in file.read_text().splitlines()
    ]
