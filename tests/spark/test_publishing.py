"""Publishing: every format and envelope, and how far an output is written after a kill."""

import re
from collections.abc import Mapping
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import deltalake
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.output.watermark_log import WatermarkLog
from slackwater.spark_sink.sink import OutputPosition
from tests.proofs.former_owner import frozen_at
from tests.support.epoch_rows import PIPELINE, inserts, low_watermark, make_sink, write
from tests.support.read_tables import iceberg_at

LONG = pytest.mark.long
ONE_COMMIT: Mapping[str, Mapping[str, Any]] = {
    "parquet": {},
    "delta": {"format": "delta"},
    "iceberg": {"format": "iceberg", "envelope": "flat"},
}
SEVERAL_TABLES: Mapping[str, Mapping[str, Any]] = {
    "mirrors": {"kind": "mirror"},
    "iceberg mirrors": {"kind": "mirror", "format": "iceberg"},
}


class KilledError(Exception):
    """The process was killed."""


def write_until_line(spark: SparkSession, path: Path, epoch: int, **settings: Any) -> None:
    """Write an epoch by a process that is killed before it adds the watermark log's line."""

    def killed(*_: object) -> None:
        raise KilledError

    records = (inserts(epoch, at=epoch), inserts(epoch, at=epoch, table="Keys"))
    sink = make_sink(path, **settings)
    sink.position(spark)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WatermarkLog, "add_line", killed)
        with pytest.raises(KilledError):
            write(spark, sink, epoch, *records)


@pytest.mark.parametrize("settings", ONE_COMMIT.values(), ids=list(ONE_COMMIT))
def test_what_is_committed_at_once_is_complete_with_or_without_its_line(
    session: SparkSession, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    path = tmp_path / "out"

    def position() -> OutputPosition | None:
        return make_sink(path, **settings).position(session)

    def at(epoch: int, committed: int) -> OutputPosition:
        last = low_watermark(committed)
        return OutputPosition(low_watermark(epoch), None, PIPELINE, committed=last)

    assert position() == OutputPosition(None, None, None)
    write_until_line(session, path, 1, **settings)
    # The commit has the line, which the next owner adds to the log.
    assert position() == at(1, 1)
    second = make_sink(path, **settings)
    second.position(session)
    write(session, second, 2)
    # It has no rows, and so no commit.
    assert position() == at(2, 1)
    write_until_line(session, path, 3, **settings)
    assert position() == at(3, 3)


@pytest.mark.parametrize("settings", SEVERAL_TABLES.values(), ids=list(SEVERAL_TABLES))
def test_what_several_tables_show_is_complete_with_its_line(
    session: SparkSession, tmp_path: Path, settings: Mapping[str, Any]
) -> None:
    path = tmp_path / "out"

    def position() -> OutputPosition | None:
        return make_sink(path, **settings).position(session)

    assert position() == OutputPosition(None, None, None, has_tables=False)
    write_until_line(session, path, 1, **settings)
    first = low_watermark(1)
    assert position() == OutputPosition(None, first, None, has_tables=True, committed=first)
    for epoch, records in ((1, [inserts(1, at=1)]), (2, [])):
        owner = make_sink(path, **settings)
        owner.position(session)
        write(session, owner, epoch, *records)
        at = low_watermark(epoch)
        ended = OutputPosition(at, None, PIPELINE, has_tables=True, committed=first)
        assert position() == ended
    assert position() == ended


def test_sparks_formats_and_kafka_at_least_once_tell_what_they_can(
    session: SparkSession, tmp_path: Path
) -> None:
    jdbc = {"kind": "spark", "format": "json", "options": {"path": str(tmp_path / "lines")}}
    path = tmp_path / "staging"
    write(session, make_sink(path, **jdbc), 1, inserts(1, at=1))
    write_until_line(session, path, 2, **jdbc)
    expected = OutputPosition(low_watermark(1), None, PIPELINE)
    assert make_sink(path, **jdbc).position(session) == expected
    options = {"kafka.bootstrap.servers": "localhost:1"}
    kafka = make_sink(
        path, kind="kafka", topic="changes", options=options, delivery="at_least_once"
    )
    assert kafka.position(session) is None


@pytest.mark.parametrize(("kind", "step"), [("parquet", 4), ("mirror", 10)])
def test_a_former_owner_that_wakes_while_it_publishes_changes_nothing(
    session: SparkSession, tmp_path: Path, kind: str, step: int
) -> None:
    # The program tests.proofs.former_owner freezes it at every step.
    assert frozen_at(session, tmp_path / "out", kind, step)


def texts(path: Path, file_format: str) -> list[str]:
    """Return each row of an output as a text: a message's value, or else its key, or a record."""
    if file_format == "json":
        return [
            line for file in path.glob("epoch=*/part-*") for line in file.read_text().splitlines()
        ]
    if file_format == "delta":
        rows = deltalake.DeltaTable(path).to_pyarrow_table().to_pylist()
    elif file_format == "iceberg":
        rows = iceberg_at(path).scan().to_arrow().to_pylist()
    else:
        rows = ds.dataset(path, format=file_format).to_table().to_pylist()
    return [str(row["value"] or row["key"]) if "key" in row else str(row["mods"]) for row in rows]


@pytest.mark.parametrize(
    "file_format",
    ["json", *(pytest.param(n, marks=LONG) for n in ("parquet", "orc", "delta", "iceberg"))],
)
def test_records_with_several_mods_land_once_in_every_envelope(
    session: SparkSession, tmp_path: Path, file_format: str
) -> None:
    def land(envelope: str) -> None:
        path = tmp_path / envelope
        sink = make_sink(path, format=file_format, envelope=envelope)
        sink.position(session)
        for epoch in (1, 2):
            ids = range(700_000 + 10 * epoch, 700_003 + 10 * epoch)
            write(session, sink, epoch, inserts(*ids, at=epoch))
        of_rows = [set(re.findall(r"\b7000\d\d\b", text)) for text in texts(path, file_format)]
        expected = [["700010", "700011", "700012"], ["700020", "700021", "700022"]]
        if envelope != "record":
            expected = [[number] for of_record in expected for number in of_record]
        assert sorted(map(sorted, of_rows)) == expected, (file_format, envelope)

    with ThreadPool(4) as pool:
        pool.map(land, envelopes())
