"""Each kind of sink over streams with mutable key ranges, where keys move between partitions.

`python -m tests.proofs.mutable_service` has every format with every envelope, and kills.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from slackwater.timestamp import format_rfc3339
from tests.proofs.mutable_sinks import STEP_US, life_of
from tests.support.command_line import slackwater
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.synthetic.server import synthetic_process

_STEPS = 12
_SINKS = (
    ("parquet", "json_flat", "orc", "delta", "iceberg"),
    ("passed", "changelogs", "mirror", "iceberg_mirror", "kafka_debezium"),
)


@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize("first_seed", [0, len(_SINKS[0])], ids=["changelogs", "others"])
def test_each_sink_has_every_change_of_a_stream_with_mutable_key_ranges(
    first_seed: int, tmp_path: Path, kafka_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_us = time.time_ns() // 1_000 - (_STEPS + 20) * STEP_US
    lives = [
        life_of(seed, begin_us, _STEPS, tmp_path / sink, kafka_broker, sink)
        for seed, sink in enumerate(_SINKS[first_seed > 0], first_seed)
    ]
    pipelines = {life.name: life.settings() for life in lives}
    for life in lives:
        end = format_rfc3339(life.between_us[1] * 1_000)
        pipelines[life.name]["source"]["end"] = end
    settings = {
        "pipelines": pipelines,
        "state": {"url": f"sqlite:///{tmp_path / 'state.db'}"},
        "spark": {"master": "local[2,4]"},
    }
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(settings))
    with synthetic_process({life.name: life.source.script for life in lives}) as host:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", host)
        done = slackwater("run", "-c", str(config), "--until-caught-up")
    assert done.returncode == 0, done.stderr[-5_000:]
    for life in lives:
        life.require_equal()
