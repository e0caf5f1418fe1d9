"""What a successor removes as Spark writes it is published by nobody in part."""

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER
from tests.support.epoch_rows import START, frame, inserts, make_sink

pytestmark = pytest.mark.timeout(300)
REFUSALS = "taken the pipeline over|since this was staged|can't be moved"


def of_a_slow_second_task(session: SparkSession, go: Path) -> DataFrame:
    """Return two records, of which a task writes the second only when a file is there."""

    def waits(table: str) -> bool:
        while table == "Second" and not go.exists():
            time.sleep(0.02)
        return True

    tables = [frame(session, [inserts(1, at=1, table=name)]) for name in ("First", "Second")]
    is_there = F.udf(waits, "boolean").asNondeterministic()
    return tables[0].union(tables[1]).where(is_there("table_name"))


def remove_under(
    output: Path,
    write: Callable[[], object],
    remove: Callable[[], object],
) -> None:
    """Have what is staged removed when a part of it is written, and let it go on."""
    error: list[BaseException] = []

    def run() -> None:
        try:
            write()
        except PublishError as caught:
            error.append(caught)

    writer = threading.Thread(target=run)
    writer.start()
    while not list(output.glob(f"{STAGING_FOLDER}/*/*/part-*")):
        assert writer.is_alive()
        time.sleep(0.02)
    remove()
    (output.parent / "go").touch()
    writer.join(120)
    assert not writer.is_alive()
    assert re.search(REFUSALS, str(error[0]))


def texts_in(folder: Path) -> list[str]:
    """Return the tables that are named in the JSON files of a folder."""
    files = sorted(folder.glob("*/part-*.json"))
    return sorted(
        json.loads(line)["table_name"] for file in files for line in file.read_text().splitlines()
    )


def test_a_former_owner_publishes_no_part_of_a_chunk(session: SparkSession, tmp_path: Path) -> None:
    output = tmp_path / "out"
    former, successor = (make_sink(output, format="json") for _ in range(2))
    former.position(session)
    chunk = of_a_slow_second_task(session, tmp_path / "go")
    remove_under(
        output, lambda: former.add_scanned(chunk, 0, START), lambda: successor.position(session)
    )
    assert texts_in(output) == []
    assert successor.add_scanned(chunk, 0, START) == 2
    assert texts_in(output) == ["First", "Second"]


def test_a_process_that_has_lost_the_pipeline_and_got_it_back_publishes_no_part(
    session: SparkSession, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    sink = make_sink(output, format="json")
    sink.position(session)
    chunk = of_a_slow_second_task(session, tmp_path / "go")

    def take_over() -> None:
        sink.position(session)
        sink.add_scanned(frame(session, [inserts(1, at=1, table="Other")]), 1, START)

    remove_under(output, lambda: sink.add_scanned(chunk, 0, START), take_over)
    assert texts_in(output) == ["Other"]
    assert sink.add_scanned(chunk, 0, START) == 2
    assert texts_in(output) == ["First", "Other", "Second"]
