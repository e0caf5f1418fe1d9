"""Changes of a table of Bigtable's, by the program, in each format that takes them.

See tests/spark/test_bigtable_columns.py for a process that is killed.
"""

import json
import re
import shlex
import shutil
import time
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow.dataset as ds
import pyarrow.orc as orc
import pytest
import yaml

from slackwater.config.load import load_pipelines
from slackwater.errors import SettingsError
from slackwater.pipeline import resume_point
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.timestamp import datetime_to_ns, format_rfc3339, seconds_to_ns, us_to_ns
from tests.support.bigtable_pipelines import history as history
from tests.support.bigtable_pipelines import host as host
from tests.support.bigtable_pipelines import pipelines_of, source
from tests.support.bigtable_pipelines import shape as shape
from tests.support.command_line import slackwater
from tests.support.read_tables import rows_at
from tests.synthetic.bigtable.history import History, SetCell, Shape

CELL: Final = {"columns": {"info:q0": "BYTES"}}
KAFKA: Final = {
    "kind": "kafka",
    "format": "json",
    "topic": "clicks",
    "options": {"kafka.bootstrap.servers": "localhost:1"},
}
BIGQUERY: Final = {"format": "bigquery", "path": "bq://project/dataset"}
FORMATS: Final = ("parquet", "json", "orc", "delta", "iceberg")
Row = tuple[bytes, int, int, str | None, str, tuple[Any, ...]]


@pytest.mark.long
@pytest.mark.usefixtures("commands_here")
def test_a_store_that_was_lost_comes_back_from_the_output_with_each_change_once(
    shape: Shape, history: History, host: str, tmp_path: Path
) -> None:
    file, settings = pipelines_of(FORMATS, shape, host, tmp_path)
    run_to_the_middle(file, settings, shape)
    settings["state"]["url"] = f"sqlite:///{tmp_path / 'another.db'}"
    file.write_text(yaml.safe_dump(settings))
    assert slackwater("run", "-c", str(file)).returncode == 0
    expected = Counter(map(landed_as, history.changes))
    for name in FORMATS:
        rows = rows_of(name, tmp_path / name)
        assert Counter(rows) == expected, name
        by_key = defaultdict(list)
        for key, commit_us, _, cluster, *_ in rows:
            by_key[key, cluster].append(commit_us)
        if name in ("parquet", "json", "orc"):
            assert all(times == sorted(times) for times in by_key.values()), name
    said = slackwater("partitions", "-c", str(file), "--pipeline", "orc", "--format", "json")
    partitions = json.loads(said.stdout)
    assert (partitions[0]["keys"][:2], partitions[-1]["keys"][-2:]) == ("[,", " )")
    assert all(each["has_token"] for each in partitions)


@pytest.mark.usefixtures("commands_here")
def test_without_its_store_a_pipeline_goes_on_from_exact_positions_or_as_the_remedy_says(
    shape: Shape,
    history: History,
    host: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file, settings = pipelines_of(("parquet",), shape, host, tmp_path)
    run_to_the_middle(file, settings, shape)
    settings["state"]["url"] = f"sqlite:///{tmp_path / 'another.db'}"
    file.write_text(yaml.safe_dump(settings))
    output, checkpoint = tmp_path / "parquet", tmp_path / "parquet-checkpoint"
    positions = output / "_positions"
    positions_aside = positions.rename(tmp_path / "positions")
    checkpoint_aside = checkpoint.rename(tmp_path / "checkpoint")
    output_aside = shutil.copytree(output, tmp_path / "output")

    def refused() -> str:
        done = slackwater("run", "-c", str(file))
        assert done.returncode == 2
        return done.stderr

    # As after a pod has moved, whose checkpoint and store were on its disk.
    with monkeypatch.context() as patch:
        patch.setattr(TableSettings, "has_expendable_checkpoint", True)
        assert "has no positions of pipeline 'parquet'" in refused()
        positions_aside.rename(positions)
        with monkeypatch.context() as without_changes:
            # A margin of the whole retention period.
            without_changes.setattr(resume_point, "_MARGIN_NS", seconds_to_ns(7 * 86_400))
            assert "has no positions of pipeline 'parquet'" in refused()
        assert slackwater("run", "-c", str(file)).returncode == 0
    expected = Counter(map(landed_as, history.changes))
    assert Counter(rows_of("parquet", output)) == expected
    # Store and output have lost them, and the checkpoint is there.
    for lost, there in ((output, output_aside), (checkpoint, checkpoint_aside)):
        shutil.rmtree(lost)
        there.rename(lost)
    settings["state"]["url"] = f"sqlite:///{tmp_path / 'third.db'}"
    file.write_text(yaml.safe_dump(settings))
    [remedy] = re.findall(r"`slackwater (.*?)`", refused())
    assert slackwater(*shlex.split(remedy)).returncode == 0
    assert set(rows_of("parquet", output)) == expected.keys()


@pytest.mark.usefixtures("commands_here")
def test_changes_that_an_operator_has_skipped_are_not_read_by_a_later_run(
    shape: Shape, host: str, tmp_path: Path
) -> None:
    file, settings = pipelines_of(("parquet",), shape, host, tmp_path)
    run_to_the_middle(file, settings, shape)
    before = rows_of("parquet", tmp_path / "parquet")
    assert before
    status = json.loads(slackwater("status", "-c", str(file), "--json").stdout)
    listed = slackwater("partitions", "-c", str(file), "--format", "json").stdout
    assert status["records"] == len(before)
    assert status["partitions"]["running"] == len(json.loads(listed)) > 0
    skip = ("--skip-to", format_rfc3339(us_to_ns(shape.end_us + 2_000_000)))
    for seconds, options in ((3, skip), (5, ())):
        end_us = shape.end_us + seconds * 1_000_000
        time.sleep(max(0, end_us / 1e6 - time.time()))
        settings["source"]["end"] = format_rfc3339(us_to_ns(end_us))
        file.write_text(yaml.safe_dump(settings))
        assert slackwater("run", "-c", str(file), *options).returncode == 0
    assert rows_of("parquet", tmp_path / "parquet") == before


def run_to_the_middle(file: Path, settings: dict[str, Any], shape: Shape) -> None:
    middle = format_rfc3339(us_to_ns((shape.start_us + shape.end_us) // 2))
    bounded = {**settings, "source": {**settings["source"], "end": middle}}
    file.write_text(yaml.safe_dump(bounded))
    assert slackwater("run", "-c", str(file)).returncode == 0


def test_init_writes_a_file_that_check_finds_right(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BIGTABLE_EMULATOR_HOST", host)
    names = ("--project", "project", "--instance", "instance", "--table", "table")
    done = slackwater("init", *names, "--check")
    assert done.returncode == 0, done.stderr
    assert "kept for 7 d" in done.stdout
    [settings] = load_pipelines(Path("slackwater.yaml"), {})
    assert (settings.pipeline, settings.source.kind, settings.sink.format) == (
        *("table", "bigtable", "parquet"),
    )


@pytest.mark.parametrize(
    ("cell", "sink", "said"),
    [
        ("infos:q0", {}, r"has no column family infos\. .*It has info, stats, sums"),
        (
            "info:sp ace",
            {"kind": "changelogs", "format": "delta"},
            r"source\.columns: .*'info:sp ace'.* does not take that name\. .*Leave it out",
        ),
    ],
)
def test_a_cell_that_can_be_no_column_is_refused_before_anything_is_written(
    cell: str,
    sink: dict[str, str],
    said: str,
    host: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = {"path": "out", "checkpoint": "checkpoint", **sink}
    of_file = {"source": {**source(host), "columns": {cell: "BYTES"}}, "sink": sink}
    Path("slackwater.yaml").write_text(yaml.safe_dump({"pipeline": "clicks", **of_file}))
    for command in ("check", "run"):
        done = slackwater(command)
        assert done.returncode == 2, done.stdout
        assert re.search(said, " ".join((done.stdout + done.stderr).split()))
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--sink", "mirror"), "Use one of parquet, json, orc, delta, iceberg"),
        (("--database", "shop"), "--table and --database do not go together"),
        (("--source", "priority=low"), "priority: unknown key"),
    ],
)
def test_init_refuses_what_does_not_go_with_a_table(
    options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = ("--project", "project", "--instance", "instance", "--table", "table")
    done = slackwater("init", *names, *options)
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"sink": {"kind": "mirror", "format": "delta"}}, "goes with sink.kind changelog"),
        (
            {"source": CELL, "sink": {"kind": "changelogs", **BIGQUERY}},
            "sink.format bigquery goes with sink.kind changelog",
        ),
        (
            {"source": CELL, "sink": {"kind": "mirror", "format": "delta"}},
            "does not go with sink.kind mirror",
        ),
        ({"sink": {"envelope": "flat"}}, "with the envelope record"),
        ({"sink": {"partition_by": "table_name"}}, "goes with sink.kind changelog"),
        ({"source": CELL, "sink": {**KAFKA, "envelope": "row"}}, "the envelopes record, key_only"),
        (
            {
                "source": CELL,
                "sink": {
                    **KAFKA,
                    "format": "avro",
                    "envelope": "flat",
                    "confluent_schema_registry": "http://localhost:1",
                },
            },
            "(not in Avro) flat",
        ),
        (
            {"source": CELL, "sink": {**KAFKA, "envelope": "flat"}},
            "Kafka is one with sink.shards 1",
        ),
        ({"source": CELL, "sink": {"kind": "spark", "format": "x"}}, "visible at one moment"),
        (
            {"source": {"columns": {"info:a": "BYTES", "info:A": "BYTES"}}},
            "differ in case only: leave one of them out",
        ),
        ({"source": {"columns": {"row_key": "INT64"}}}, "Use one of BYTES, STRING"),
        ({"source": {"columns": {"q0": "BYTES"}}}, "neither family:qualifier nor row_key"),
        ({"source": {"columns": {"info:q0": "BOOL"}}}, "has the type 'BOOL'. Use one of BYTES"),
        ({"filter": {"tables": "t"}}, "filter is for Spanner's changes"),
        ({"epoch": {"reading": "continuous"}}, "continuous does not go with source.kind bigtable"),
        ({"source": {"kind": "bigtables"}}, "Input should be 'spanner' or 'bigtable'"),
        ({"source": {"database": "d"}}, "source.database: unknown key"),
    ],
)
def test_settings_that_do_not_go_with_bigtable_are_refused(
    values: dict[str, Any], said: str, tmp_path: Path
) -> None:
    file = tmp_path / "slackwater.yaml"
    places = {"path": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}
    whole = {
        "pipeline": "clicks",
        **values,
        "source": {**source("localhost:1"), **values.get("source", {})},
        "sink": {**places, **values.get("sink", {})},
    }
    file.write_text(yaml.safe_dump(whole))
    with pytest.raises(SettingsError) as refused:
        load_pipelines(file, {})
    assert said in refused.value.message


def landed_as(change: Any) -> Row:
    kind = "GARBAGE_COLLECTION" if change.is_garbage_collection else "USER"
    cells = tuple((e.family, e.value) for e in change.entries if isinstance(e, SetCell))
    return (
        change.row_key,
        change.commit_us,
        change.tie_breaker,
        change.cluster or None,
        kind,
        (len(change.entries), cells),
    )


def rows_of(name: str, path: Path) -> list[Row]:
    return [row_of(record) for record in records_of(name, path)]


def records_of(name: str, path: Path) -> Iterable[dict[str, Any]]:
    """Yield the rows of an output as other readers of the format see them, epoch by epoch."""
    if name in ("delta", "iceberg"):
        yield from rows_at(name, path).to_pylist()
        return
    for epoch in sorted(path.glob("epoch=*")):
        for file in sorted(epoch.glob("part-*")):
            match name:
                case "parquet":
                    yield from ds.dataset(file).to_table().to_pylist()
                case "orc":
                    yield from orc.read_table(file).to_pylist()
                case _:
                    yield from map(json.loads, file.read_text().splitlines())


def row_of(record: dict[str, Any]) -> Row:
    commit = record["commit_timestamp"]
    time_ns = datetime_to_ns(datetime.fromisoformat(commit) if isinstance(commit, str) else commit)
    cells = tuple(
        (entry["family"], _bytes(entry["value"]))
        for entry in record["entries"]
        if entry["kind"] == "SET_CELL"
    )
    return (
        _bytes(record["row_key"]),
        time_ns // 1_000,
        record["tiebreaker"],
        record.get("source_cluster_id"),
        record["type"],
        (len(record["entries"]), cells),
    )


def _bytes(value: bytes | str) -> bytes:
    return b64decode(value) if isinstance(value, str) else value
