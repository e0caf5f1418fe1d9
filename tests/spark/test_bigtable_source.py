"""The format bigtable_changes by itself, as a notebook uses it; runs on Spark 4.1 and on 4.2."""

import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from slackwater.pipeline.failures import diagnose
from slackwater.reader.bigtable.changes import SCHEMA
from slackwater.reader.schema import SCHEMA as RECORDS
from slackwater.timestamp import format_rfc3339, parse_rfc3339, us_to_ns
from tests.spark.sessions import on_newer_spark, wait_until
from tests.support.bigtable_rows import as_row, require_once
from tests.synthetic.bigtable.history import Shape, generate
from tests.synthetic.bigtable.server import bigtable_process

SEED: Final = 11
NAMES: Final = {"project": "project", "instance": "instance", "table": "table"}


@pytest.fixture(scope="module")
def shape(notebook: SparkSession) -> Shape:
    # After Spark's start: a part of it lies in the past, and the rest comes while it is read.
    del notebook
    start_us = time.time_ns() // 1_000 - 8_000_000
    return Shape(start_us=start_us, seconds=20, churn_per_s=1, clusters=2, large=0.05)


@pytest.fixture(scope="module")
def host(shape: Shape) -> Iterator[str]:
    with bigtable_process(partial(generate, SEED, shape)) as host:
        yield host


class Landing:
    """A query into files, which Spark's own sink writes once, and its restarts.

    Args:
        spark: the notebook's session.
        options: of the source.
        folder: for files and checkpoint.
    """

    def __init__(self, spark: SparkSession, options: dict[str, str], folder: Path) -> None:
        self._spark = spark
        self._options = options
        self.files, self.checkpoint = folder / "changes", folder / "checkpoint"

    def run_until(self, done: Callable[[], bool]) -> None:
        """Start the query again, and stop it when a condition holds."""
        # Or Spark 4.1 would read a new one up to now in one epoch.
        is_new = {} if self.checkpoint.exists() else {"checkpoint_is_empty": "true"}
        query = (
            changes(self._spark, self._options | is_new)
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(processingTime="1 second")
            .start(str(self.files))
        )
        try:
            wait_until(done, query)
        finally:
            query.stop()

    def has_committed(self, batches: int) -> bool:
        """Return whether that many batches are in the commit log."""
        return len(self.batches("commits")) >= batches

    def batches(self, log: str) -> list[Path]:
        """Return the files of one of the checkpoint's logs, in their order."""
        files = [path for path in (self.checkpoint / log).glob("[0-9]*") if path.name.isdigit()]
        return sorted(files, key=lambda path: int(path.name))

    def offset(self) -> dict[str, Any]:
        """Return the last offset in the checkpoint."""
        offset: dict[str, Any] = json.loads(
            self.batches("offsets")[-1].read_text().splitlines()[-1]
        )
        return offset

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows that were written, epoch by epoch."""
        rows: list[dict[str, Any]] = self._spark.read.parquet(str(self.files)).toArrow().to_pylist()
        return sorted(rows, key=lambda row: row["low_watermark"])


def changes(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("bigtable_changes").options(**options).load()


def at(host: str, start_us: int) -> dict[str, str]:
    start = format_rfc3339(us_to_ns(start_us))
    return {**NAMES, "endpoint": host, "plaintext": "true", "start": start}


@on_newer_spark
def test_each_change_is_read_once_over_restarts(
    shape: Shape, host: str, notebook: SparkSession, tmp_path: Path
) -> None:
    end_ns = us_to_ns(shape.end_us + 2_000_000)
    options = {"end": format_rfc3339(end_ns), "max_span": "3s"} | at(host, shape.start_us)
    landing = Landing(notebook, options, tmp_path)
    for further in (3, 1):
        count = len(landing.batches("commits")) + further
        landing.run_until(partial(landing.has_committed, count))
        # As after a crash between the sink's commit and Spark's own: the sink skips the batch. If
        # the next one was begun, it is the one that is repeated.
        if (last := landing.batches("commits")[-1]).name == landing.batches("offsets")[-1].name:
            last.unlink()
            (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    landing.run_until(partial(has_reached, landing, end_ns))
    rows = landing.rows()
    require_once(list(map(as_row, rows)), generate(SEED, shape).changes)
    assert len({row["low_watermark"] for row in rows}) > 2


def has_reached(landing: Landing, end_ns: int) -> bool:
    """Return whether the epoch that ends there was committed."""
    numbers = [path.name for path in landing.batches("commits")]
    last_ns = parse_rfc3339(landing.offset()["low_watermark"])
    return last_ns >= end_ns and landing.batches("offsets")[-1].name in numbers


def test_a_restart_without_the_positions_is_refused_and_nothing_is_read_by_time(
    host: str, notebook: SparkSession, tmp_path: Path
) -> None:
    landing = Landing(notebook, at(host, time.time_ns() // 1_000 - 1_000_000), tmp_path)
    landing.run_until(partial(landing.has_committed, 2))
    store = Path(landing.offset()["state_url"].removeprefix("sqlite:///"))
    store.unlink()
    before = landing.rows()
    with pytest.raises((StreamingQueryException, AssertionError)) as refused:
        landing.run_until(lambda: False)
    failure = diagnose(str(refused.value))
    assert (failure.error_class, failure.user_error) == ("PositionsLostError", True)
    assert "in a notebook" in failure.hint
    assert landing.rows() == before


def test_a_batch_can_be_read_twice_only_if_it_persists(
    host: str, notebook: SparkSession, tmp_path: Path
) -> None:
    counts: list[tuple[int, int]] = []

    def read_twice(batch: DataFrame, _: int) -> None:
        counts.append((batch.count(), batch.count()))

    def persist(batch: DataFrame, number: int) -> None:
        read_twice(batch.persist(), number)

    def run(sink: Callable[[DataFrame, int], None], folder: str) -> None:
        query = (
            changes(notebook, at(host, time.time_ns() // 1_000 - 1_000_000))
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / folder))
            .start()
        )
        try:
            wait_until(lambda: len(counts) > 1, query)
        finally:
            query.stop()

    run(persist, "persisting")
    assert all(first == second for first, second in counts)
    counts.clear()
    with pytest.raises(AssertionError) as refused:
        run(read_twice, "reading")
    failure = diagnose(str(refused.value))
    assert failure.error_class == "AlreadySealedError"
    assert "persist()" in failure.hint


def test_the_columns_are_those_of_the_contract(notebook: SparkSession) -> None:
    source = changes(notebook, NAMES)
    assert source.columns == SCHEMA.names
    assert source.schema["commit_timestamp"].dataType.simpleString() == "timestamp"
    listed = changes(notebook, NAMES | {"columns": '{"info:name": "STRING"}'})
    assert listed.columns == RECORDS.names


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"table": ""}, r"bigtable_changes needs the option\(s\) table"),
        ({"tabel": "t"}, r"bigtable_changes has no option 'tabel'.*'table'"),
        ({"table": "cl?cks"}, r"option table: .*'cl\?cks' is not a valid name in Bigtable"),
        ({"reading": "continuous"}, r"option reading: .*bounded"),
        ({"start": "yesterday"}, r"option start: .*write now or earliest"),
        ({"database": "shop"}, r"bigtable_changes has no option 'database'"),
    ],
)
def test_an_option_that_is_missing_or_wrong_is_named(
    options: dict[str, str], said: str, notebook: SparkSession
) -> None:
    with pytest.raises(Exception, match=said):
        changes(notebook, {**NAMES, **options})


def test_a_batch_read_is_refused_with_what_to_use_instead(notebook: SparkSession) -> None:
    source = notebook.read.format("bigtable_changes").options(**NAMES)
    with pytest.raises(Exception, match=r"is a stream: .*Use spark\.readStream"):
        source.load().collect()
