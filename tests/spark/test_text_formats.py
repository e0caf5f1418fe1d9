"""Formats of text keep what orders the changes: timestamps with all their decimals."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from slackwater.reader.schema import ddl
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.spark_format import SparkFormat
from tests.support.epoch_rows import frame, inserts, make_sink, on_disk

AT = datetime(2026, 1, 31, 9, 0, 0, 123456, tzinfo=UTC)
SCHEMA = "commit_timestamp TIMESTAMP, number_of_records_in_transaction BIGINT"


def land(sink: Sink, session: SparkSession) -> None:
    epoch: DataFrame = session.createDataFrame([(AT, 1)], SCHEMA)
    sink.position(session)
    sink.publish(session, 0, sink.stage(epoch, 0), AT)


def texts(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.rglob("part-*"))


def test_a_json_changelog_has_microseconds(session: SparkSession, tmp_path: Path) -> None:
    land(make_sink(tmp_path, format="json"), session)
    assert '"2026-01-31T09:00:00.123456Z"' in texts(tmp_path)


@pytest.mark.parametrize("envelope", ["record", "flat"])
def test_a_task_without_records_leaves_no_empty_file(
    session: SparkSession, tmp_path: Path, envelope: str
) -> None:
    sink = make_sink(tmp_path, format="json", envelope=envelope)
    sink.position(session)
    nothing = session.createDataFrame([], ddl())
    epoch = nothing.union(frame(session, [inserts(1, at=1)]))
    sink.publish(session, 1, sink.stage(epoch, 1), AT)
    [file] = tmp_path.glob("epoch=*/part-*")
    assert '"n1"' in file.read_text().replace("\\", "")


@pytest.mark.parametrize("file_format", ["json", "CSV", "xml"])
def test_a_text_format_of_sparks_gets_microseconds(
    session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    folder = tmp_path / "output"
    options = {"path": str(folder), "rowTag": "row"}
    land(SparkFormat(on_disk(tmp_path / "staging"), file_format, "orders", options), session)
    assert "2026-01-31T09:00:00.123456Z" in texts(folder)


def test_a_users_own_format_of_timestamps_wins(session: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "output"
    options = {"path": str(folder), "TIMESTAMPFORMAT": "yyyy"}
    land(SparkFormat(on_disk(tmp_path / "staging"), "csv", "orders", options), session)
    assert texts(folder) == "2026,1\n"
