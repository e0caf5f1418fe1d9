"""How far an output is written: exact after empty epochs, kills, replays and in every format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sink import OutputPosition
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.delta_kernel import KernelRefusedError, KernelWriter
from slackwater.spark_sink.tables.iceberg import Iceberg
from tests.epoch_rows import PIPELINE, inserts, low_watermark, make_sink, write

ONE_COMMIT: Mapping[str, Mapping[str, Any]] = {
    "parquet": {},
    "delta": {"format": "delta"},
    "iceberg": {"format": "iceberg", "envelope": "flat"},
}
SEVERAL_TABLES: Mapping[str, Mapping[str, Any]] = {
    "mirrors": {"kind": "mirror"},
    "iceberg mirrors": {"kind": "mirror", "format": "iceberg"},
}


@pytest.fixture(scope="module")
def session() -> Iterator[SparkSession]:
    find_java()
    spark = start_spark([PIPELINE], "local[2]", {}, ["delta", "iceberg"])
    yield spark
    stop_spark(spark)


class KilledError(Exception):
    """The process was killed."""


def write_until_line(spark: SparkSession, path: Path, epoch: int, **settings: Any) -> None:
    """Write an epoch by a process that is killed before it adds the watermark log's line."""

    def killed(*_: object) -> None:
        raise KilledError

    records = (inserts(epoch, at=epoch), inserts(epoch, at=epoch, table="Keys"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatermarkLog, "add", killed)
        with pytest.raises(KilledError):
            write(spark, make_sink(path, **settings), epoch, *records)


@pytest.mark.parametrize("settings", ONE_COMMIT.values(), ids=list(ONE_COMMIT))
def test_what_is_committed_at_once_is_complete_with_or_without_its_line(
    session: SparkSession, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    path = tmp_path / "out"

    def position() -> OutputPosition | None:
        return make_sink(path, **settings).position(session)

    assert position() == OutputPosition(None, None, None)
    write_until_line(session, path, 1, **settings)
    assert position() == OutputPosition(low_watermark(1), None, None)
    write(session, make_sink(path, **settings), 2)
    assert position() == OutputPosition(low_watermark(2), None, PIPELINE)
    write_until_line(session, path, 3, **settings)
    assert position() == OutputPosition(low_watermark(3), None, PIPELINE)


@pytest.mark.parametrize("settings", SEVERAL_TABLES.values(), ids=list(SEVERAL_TABLES))
def test_what_several_tables_show_is_complete_with_its_line(
    session: SparkSession, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    path = tmp_path / "out"

    def position() -> OutputPosition | None:
        return make_sink(path, **settings).position(session)

    assert position() == OutputPosition(None, None, None)
    write_until_line(session, path, 1, **settings)
    assert position() == OutputPosition(None, low_watermark(1), None)
    write(session, make_sink(path, **settings), 1, inserts(1, at=1))
    assert position() == OutputPosition(low_watermark(1), None, PIPELINE)
    write(session, make_sink(path, **settings), 2)
    assert position() == OutputPosition(low_watermark(2), None, PIPELINE)


def test_sparks_formats_and_kafka_tell_what_they_can(session: SparkSession, tmp_path: Path) -> None:
    jdbc = {"kind": "spark", "format": "json", "options": {"path": str(tmp_path / "lines")}}
    path = tmp_path / "staging"
    write(session, make_sink(path, **jdbc), 1, inserts(1, at=1))
    write_until_line(session, path, 2, **jdbc)
    expected = OutputPosition(low_watermark(1), None, PIPELINE)
    assert make_sink(path, **jdbc).position(session) == expected
    options = {"kafka.bootstrap.servers": "localhost:1"}
    kafka = make_sink(path, kind="kafka", topic="changes", options=options)
    assert kafka.position(session) is None


def test_a_table_s_position_is_read_without_kernel_and_after_others_commits(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    delta, iceberg = Delta(), Iceberg()
    for table_format in (delta, iceberg):
        path = str(tmp_path / table_format.using)
        for application, version in (("ours", 5), ("ours", 7), ("other", 9), ("other", 10)):
            table_format.append(session.range(3), path, application, version)
        table_format.compact(session, path)
    monkeypatch.setattr("slackwater.spark_sink.tables.iceberg._ANCESTORS_MAX", 1)

    def refuse(*_: object) -> None:
        raise KernelRefusedError

    monkeypatch.setattr(KernelWriter, "last_version", refuse)
    for table_format in (delta, iceberg):
        path = str(tmp_path / table_format.using)
        versions = [table_format.last_version(session, path, name) for name in ("ours", "none")]
        assert versions == [7, None]
