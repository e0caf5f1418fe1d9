"""Rows that pass between tasks and the driver where epochs are staged."""

import atexit
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.arrow_schema import arrow_schema_of
from slackwater.grouping import groups_by_size
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.output.file_reader import FileReader
from slackwater.spark_sink.output.file_writer import written_by_tasks, written_files_of

# In bytes: what a task reads at once.
_PART: Final = 64 << 20
# The kind of staged files that hold them.
_ROWS: Final = "rows"


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


class RowsForTasks:
    """Rows that the driver has from elsewhere, written for tasks, a part at a time.

    Args:
        place: where epochs are staged. The files there go when this process ends,
            or when the pipeline is taken over.
    """

    def __init__(self, place: EpochPlace) -> None:
        self._place = place
        # Others stage and remove files of their own there.
        self._owner = uuid.uuid4().hex
        self._is_used = False

    def frame(
        self, spark: SparkSession, rows: Iterable[pa.RecordBatch], schema: pa.Schema
    ) -> DataFrame:
        """Return rows as tasks read them, until the next call.

        Args:
            spark: the session.
            rows: with the columns of the schema, of types that can be cast to theirs.
            schema: of the rows.

        Raises:
            PublishError: the place refuses.
        """
        if self._is_used:
            self._discard()
        else:
            self._is_used = True
            atexit.register(self._forget)
        writer = self._place.writer(self._owner, _ROWS, PARQUET, ())
        written = [
            file
            for part in groups_by_size(rows, lambda batch: batch.nbytes, _PART)
            for file in written_files_of(writer, pa.Table.from_batches(part).cast(schema))
        ]
        return FileReader.of(writer).frame(spark, written, from_arrow_schema(schema))

    def _discard(self) -> None:
        with self._place.translating():
            self._place.discard(self._owner, _ROWS, ())

    def _forget(self) -> None:
        with suppress(SinkError), self._place.translating():
            self._place.forget(self._owner)
