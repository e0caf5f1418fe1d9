"""Epochs whose tasks write, here in this process: most sinks need no Spark for them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from slackwater.reader.schema import SCHEMA
from slackwater.spark_sink.output.task_writer import TaskWriter
from slackwater.spark_sink.sink import Sink
from tests.support.epoch_rows import Record, low_watermark, table_of


@dataclass(frozen=True)
class HandedOn:
    """What tasks hand on, as Spark has it: of a DataFrame it is what a sink asks for.

    Attributes:
        rows: of all tasks.
        sparkSession: a session; None for a sink that needs none.
    """

    rows: pa.Table
    sparkSession: Any  # noqa: N815 - Spark's name

    @classmethod
    def by_tasks(cls, writer: TaskWriter, records: Sequence[Record], spark: Any) -> "HandedOn":
        """Have each record written by a task of its own."""
        batches = [table_of([record]).to_batches() for record in records]
        handed_on = [batch for of_task in batches for batch in writer.write(of_task)]
        return cls(pa.Table.from_batches(handed_on), spark)

    @property
    def columns(self) -> list[str]:
        """The columns' names."""
        return list(self.rows.column_names)

    def toArrow(self) -> pa.Table:  # noqa: N802 - Spark's name
        """Return the rows."""
        return self.rows


class Tasks:
    """Write epochs as a pipeline's tasks do, and publish them.

    Args:
        sink: that owns its output; see Sink.position().
        spark: a session; None for a sink that needs none.
    """

    def __init__(self, sink: Sink, spark: Any = None) -> None:
        self._sink = sink
        self._spark = spark
        of_tasks: Any = sink
        text = of_tasks.task_writer(spark, from_arrow_schema(SCHEMA))
        assert text is not None, "Spark has to write for this sink"
        self._writer = TaskWriter.from_text(text)

    def write(self, epoch: int, *records: Record) -> None:
        """Stage and publish an epoch."""
        rows: Any = HandedOn.by_tasks(self._writer, records, self._spark)
        summary = self._sink.stage(rows, epoch)
        self._sink.publish(self._spark, epoch, summary, low_watermark(epoch))
