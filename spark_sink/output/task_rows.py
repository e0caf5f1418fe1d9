"""Rows that tasks write where epochs are staged, for the driver to send elsewhere."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import written_by_tasks

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows_by_tasks(rows: DataFrame, place: EpochPlace, owner: str) -> Iterator[pa.RecordBatch]:
    """Have tasks write rows, and return them from their files, which are gone afterwards.

    Spark's job runs at once: whoever takes the rows may turn its errors into others.

    Args:
        rows: to write.
        place: where epochs are staged.
        owner: the process, by a name that no other has.
    """
    # Of its own: others' rows are written at the same time.
    kind = uuid.uuid4().hex
    writer = place.writer(owner, kind, PARQUET, ())
    written = written_by_tasks(rows, writer)
    reader = replace(FileReader.of(writer), schema=arrow_schema_of(rows.schema))

    def read() -> Iterator[pa.RecordBatch]:
        try:
            yield from reader.batches(written)
        finally:
            with place.translating():
                place.discard(owner, kind, ())

    return read()
