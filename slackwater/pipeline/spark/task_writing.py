"""The sources of epochs and of initial scans with tasks that write the records that they read.

Without the option task_writer they are the sources that they derive from. With it the rows of a
query describe the files that the tasks have written.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from slackwater.reader.schema import SCHEMA, ddl
from slackwater.scheduler.spark.bigtable_data_source import BigtableChangesDataSource
from slackwater.scheduler.spark.data_source import SpannerChangesDataSource
from slackwater.scheduler.spark.scan_source import SpannerScanDataSource
from slackwater.sealing import seal, unseal
from slackwater.spark_sink.sink import Sink, TaskWriting

if TYPE_CHECKING:
    from slackwater.scheduler.spark.epochs_reader import ToRows

_OPTION: Final = "task_writer"


def task_writer_options(
    spark: SparkSession, sink: Sink, records: pa.Schema = SCHEMA, *, is_scan: bool = False
) -> dict[str, str]:
    """Return the option by which tasks write for a sink; none if Spark has to write.

    Args:
        spark: the pipeline's session, whose owner this process is.
        sink: the pipeline's.
        records: the columns of the source's rows.
        is_scan: whether it is for an initial scan.
    """
    if not isinstance(sink, TaskWriting):
        return {}
    schema = StructType.fromDDL(ddl(records))
    assert isinstance(schema, StructType)  # noqa: S101 - it declares columns
    text = sink.task_writer(spark, schema, is_scan=is_scan)
    # It has the settings of an object store.
    return {} if text is None else {_OPTION: seal(text)}


@dataclass(frozen=True, slots=True)
class _Writing:
    """A writer from the sealed text of a TaskWriter, which Spark carries to the tasks."""

    text: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from slackwater.spark_sink.output.task_writer import TaskWriter

        return TaskWriter.from_text(unseal(self.text)).write(batches)


class _TaskWriting(DataSource):
    """The mixin of both sources; it precedes the source that it changes."""

    def __init__(self, options: dict[str, str]) -> None:
        others = {name: value for name, value in options.items() if name.lower() != _OPTION}
        self._text = next((value for name, value in options.items() if name not in others), None)
        super().__init__(others)

    def schema(self) -> str | StructType:
        """Return the columns of the rows that tasks hand on, or the records' columns."""
        if self._text is None:
            others: Any = super()
            columns: str | StructType = others.schema()
            return columns
        from slackwater.spark_sink.output.task_writer import HANDED_ON

        return HANDED_ON

    def to_rows(self, schema: StructType) -> "ToRows | None":
        """Return a writer of the records; None if they are the rows."""
        if self._text is None:
            others: Any = super()
            rows: ToRows | None = others.to_rows(schema)
            return rows
        return _Writing(self._text)


class TaskWritingChangesSource(_TaskWriting, SpannerChangesDataSource):
    """The data change records of a change stream."""


class TaskWritingBigtableSource(_TaskWriting, BigtableChangesDataSource):
    """The changes of a table of Bigtable's."""


class TaskWritingScanSource(_TaskWriting, SpannerScanDataSource):
    """The rows of some parts of an initial scan."""
