"""Epochs become few large folders: by the documented query each record is there once, always."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_compaction import EpochCompaction
from slackwater.spark_sink.output.epoch_directory import STAGING_FOLDER
from slackwater.spark_sink.output.epoch_groups import COMPACTED
from slackwater.spark_sink.sink import Sink
from tests.epoch_rows import START, frame, inserts, make_sink, of_two_tables

# The first six are a day's; the seventh is the next day's, and two hours later.
HOURS = (0, 1, 2, 3, 4, 14.5, 17)
DOCS = Path(__file__).parent.parent.parent / "docs" / "output.md"

LAYOUTS: list[dict[str, Any]] = [
    {"format": "parquet"},
    {"format": "parquet", "partition_by": ["table_name", "date"]},
    {"format": "parquet", "envelope": "flat"},
    {"format": "orc"},
    {"format": "json"},
    {"format": "json", "envelope": "wrapped", "partition_by": ["table_name"]},
]


def write_days(spark: SparkSession, folder: Path, **settings: Any) -> Sink:
    """Write epochs of two days, of one or two tables each."""
    sink = make_sink(folder, **settings)
    sink.position(spark)
    for epoch, hours in enumerate(HOURS):
        records = of_two_tables(epoch) if epoch % 2 else [inserts(epoch, at=epoch)]
        summary = sink.stage(frame(spark, records), epoch)
        sink.publish(spark, epoch, summary, START + timedelta(hours=hours))
    return sink


def rows(spark: SparkSession, folder: Path, settings: dict[str, Any]) -> list[str]:
    """Return the rows that the query in docs/output.md reads, without the folder's name."""
    name = "text" if settings.get("envelope") == "wrapped" else settings["format"]
    [query] = re.findall(
        r"```sql\n(SELECT \* FROM .*?compacted.*?)\n```", DOCS.read_text(), re.DOTALL
    )
    query = query.replace("parquet.`out/changes`", f"{name}.`{folder}`")
    return sorted(str(row) for row in spark.sql(query).drop("epoch").collect())


def folders(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("epoch=*"))


@pytest.mark.parametrize("settings", LAYOUTS, ids=lambda s: "-".join(map(str, s.values())))
def test_a_day_becomes_one_folder_with_the_same_rows(
    session: SparkSession, tmp_path: Path, settings: dict[str, Any]
) -> None:
    root = tmp_path / "out"
    write_days(session, root, **settings)
    small, before = folders(root), rows(session, root, settings)
    assert len(before) >= len(HOURS) + 3
    compaction = EpochCompaction(root, "owner")
    compaction.run(keep_s=None)
    compacted = f"{small[-2]}{COMPACTED}"
    # A reader that has listed the small ones has time to read them.
    assert folders(root) == sorted([*small, compacted])
    assert rows(session, root, settings) == before
    compaction.run(keep_s=0)
    assert folders(root) == [compacted, small[-1]]
    assert rows(session, root, settings) == before
    for parent, _, files in os.walk(root / compacted):
        assert len(files) <= 1, parent
    # And where the output ends is known from the folder.
    shutil.rmtree(root / small[-1])
    shutil.rmtree(root / "_watermarks")
    position = make_sink(root, **settings).position(session)
    assert position is not None
    assert position.complete == START + timedelta(hours=HOURS[-2])


def test_others_read_it_in_the_order_of_the_epochs(session: SparkSession, tmp_path: Path) -> None:
    root = tmp_path / "out"
    write_days(session, root, format="parquet")
    EpochCompaction(root, "owner").run(keep_s=0)
    table = ds.dataset(root, partitioning="hive").to_table()
    watermarks = [time.isoformat() for time in table["commit_timestamp"].to_pylist()]
    assert watermarks == sorted(watermarks)
    assert table.num_rows == sum(2 if epoch % 2 else 1 for epoch in range(len(HOURS)))


def test_an_envelope_that_changed_in_between_gets_files_of_its_own(
    session: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "out"
    sink = make_sink(root, format="parquet")
    for epoch, hours in enumerate(HOURS):
        if epoch == 3:
            sink = make_sink(root, format="parquet", envelope="flat")
        summary = sink.stage(frame(session, [inserts(epoch, at=epoch)]), epoch)
        sink.publish(session, epoch, summary, START + timedelta(hours=hours))
    EpochCompaction(root, "owner").run(keep_s=0)
    [compacted] = root.glob(f"*{COMPACTED}")
    assert len(list(compacted.glob("*.parquet"))) == 2
    assert sum(session.read.parquet(str(file)).count() for file in compacted.iterdir()) == 6


class Interrupted(EpochCompaction):
    """Does something else just before the large folder appears."""

    def __init__(self, root: Path, during: Iterator[None]) -> None:
        super().__init__(root, "former")
        self._during = during

    def _compact(self, group: Any) -> None:
        original = os.rename

        def rename(source: Path, target: Path) -> None:
            os.rename = original
            next(self._during)
            original(source, target)

        os.rename = rename  # type: ignore[assignment]
        try:
            super()._compact(group)
        finally:
            os.rename = original


@pytest.mark.parametrize("keep_s", [None, 0])
@pytest.mark.parametrize("has_taken_over", [True, False])
def test_a_former_owner_that_compacts_changes_nothing_of_its_successors(
    session: SparkSession, tmp_path: Path, keep_s: float | None, has_taken_over: bool
) -> None:
    root = tmp_path / "out"
    write_days(session, root, format="parquet")
    before = rows(session, root, {"format": "parquet"})

    def successor() -> Iterator[None]:
        if has_taken_over:
            make_sink(root, format="parquet").position(session)
        EpochCompaction(root, "successor").run(keep_s)
        yield

    former = Interrupted(root, successor())
    if has_taken_over:
        with pytest.raises(PublishError, match="another process"):
            former.run(keep_s)
    else:
        former.run(keep_s)
    assert rows(session, root, {"format": "parquet"}) == before
    assert len(list(root.glob(f"*{COMPACTED}"))) == 1
    assert not list((root / STAGING_FOLDER).glob("former/*"))
