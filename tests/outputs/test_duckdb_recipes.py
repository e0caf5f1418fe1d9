"""What the pages have DuckDB read while a pipeline publishes and compacts between its listings."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.local import LocalFileSystem  # type: ignore[import-untyped]

from slackwater.spark_sink.output.epoch_names import COMPACTED
from tests.support.pages import blocks

EPOCHS = [f"20260131T0{hour}0000.000000Z" for hour in range(3)]


class Published(LocalFileSystem):  # type: ignore[misc]
    """A file system in which something happens after the first listing."""

    protocol = "published"
    cachable = False

    def __init__(self, happens: Callable[[], None]) -> None:
        super().__init__()
        self._steps = [happens]

    def glob(self, path: str, **options: Any) -> Any:
        listed = super().glob(path, **options)
        while self._steps:
            self._steps.pop()()
        return listed


def put(folder: Path, epoch: str, *parts: int) -> None:
    (folder / f"epoch={epoch}").mkdir(exist_ok=True)
    for part in parts:
        pq.write_table(pa.table({"n": [part]}), folder / f"epoch={epoch}/part-{part}.parquet")


def state(folder: Path, epoch: str) -> None:
    """Have the log of low watermarks say that an epoch is complete."""
    (folder / "_watermarks").mkdir(exist_ok=True)
    line = {"low_watermark": re.sub(r"(....)(..)(..T..)(..)", r"\1-\2-\3:\4:", epoch)}
    (folder / f"_watermarks/{epoch}.json").write_text(json.dumps(line))


def read(statements: str, happens: Callable[[], None]) -> list[int]:
    connection = duckdb.connect()
    connection.register_filesystem(Published(happens))
    read: list[int] = connection.execute(statements).to_arrow_table()["n"].to_pylist()
    return sorted(read)


def test_an_epoch_that_is_published_meanwhile_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    put(tmp_path, EPOCHS[0], 1, 2)
    state(tmp_path, EPOCHS[0])
    # The second of its two objects is still to come.
    put(tmp_path, EPOCHS[1], 3)

    def publish() -> None:
        put(tmp_path, EPOCHS[1], 4)
        state(tmp_path, EPOCHS[1])

    [recipe] = (one for one in blocks("object-stores.md", "sql") if "read_parquet" in one)
    recipe = recipe.replace("s3://my-bucket/changes", f"published://{tmp_path}")
    assert read(recipe, publish) == [1, 2]


@pytest.mark.parametrize("reads_maximum_before", [False, True])
def test_epochs_that_are_compacted_meanwhile_are_read_once(
    reads_maximum_before: bool, tmp_path: Path
) -> None:
    for number, epoch in enumerate(EPOCHS):
        put(tmp_path, epoch, number)
    staged = tmp_path / "staged"
    staged.mkdir()
    put(staged, f"{EPOCHS[1]}{COMPACTED}", 0, 1)

    def compact() -> None:
        [large] = staged.iterdir()
        shutil.move(large, tmp_path)

    [query] = (one for one in blocks("output.md", "sql") if COMPACTED in one)
    files = (
        f"read_parquet('published://{tmp_path}/epoch=*/*.parquet', hive_partitioning = true,"
        " hive_types = {epoch: VARCHAR})"
    )
    if reads_maximum_before:
        [newest] = re.findall(r"\(SELECT coalesce.*?\.compacted'\)", query)
        later = query.replace(newest, "getvariable('newest')")
        query = f"SET VARIABLE newest = {newest.replace('FROM epochs', f'FROM {files}')}; {later}"
    query = query.replace("parquet.`out/changes`", files)
    assert read(query, compact) == [0, 1, 2]
