"""Each kind of sink over streams with mutable key ranges, where keys move between partitions.

`python -m tests.proofs.mutable_service` has every format with every envelope, and kills.
"""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from slackwater.timestamp import format_rfc3339
from tests.proofs.mutable_sinks import STEP_US, life_of
from tests.support.command_line import slackwater
from tests.support.kafka_broker import kafka_broker as kafka_broker
from tests.synthetic.server import synthetic_process

_STEPS = 12
# With a seed each. So few at once that Spark starts all their workers in time on a busy machine.
_SINKS: tuple[dict[str, int], ...] = (
    {"mirror": 7, "kafka_debezium": 9},
    {"delta": 6, "changelogs": 3},
    {"parquet": 0, "iceberg": 4},
    {"json_flat": 1, "iceberg_mirror": 8},
    {"orc": 2, "passed": 5},
)


@pytest.mark.usefixtures("commands_here")
@pytest.mark.parametrize(
    "seeds",
    [
        _SINKS[0],
        *(pytest.param(seeds, marks=pytest.mark.long) for seeds in _SINKS[1:]),
    ],
    ids=map("-".join, _SINKS),
)
def test_each_sink_has_every_change_of_a_stream_with_mutable_key_ranges(
    seeds: Mapping[str, int],
    tmp_path: Path,
    kafka_broker: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin_us = time.time_ns() // 1_000 - (_STEPS + 20) * STEP_US
    lives = [
        life_of(seed, begin_us, _STEPS, tmp_path / sink, kafka_broker, sink)
        for sink, seed in seeds.items()
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
