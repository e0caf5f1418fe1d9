"""The warm-up of a standby's Spark before it is needed.

A JVM loads classes and compiles what runs often, and Python workers load modules; the first epoch
of a new process takes seconds. A standby has the time beforehand: it runs a small streaming query
over a source of the same kind as the real one, and writes its rows to a temporary folder. Then it
keeps the workers, which Spark ends once they are idle for a minute.
"""

import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
import structlog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from slackwater.pipeline.spark.jvm import FAILED_CALL
from slackwater.reader.schema import SCHEMA, ddl
from slackwater.spark_sink.java import map_in_arrow

_log = structlog.get_logger("slackwater.pipeline.spark.warm_up")

_NAME: Final = "slackwater_warm_up"
_EPOCHS: Final = 8
# On a cluster the executors may have to be waited for.
_SECONDS_MAX: Final = 300.0
_TASKS: Final = "tasks"
_KEEP_EVERY_S: Final = 30.0


class WarmUpSource(DataSource):
    """A source with the columns of the real one, that gives an empty row a task and epoch."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return _NAME

    def schema(self) -> str:
        """Return the columns, those of the real source."""
        return ddl()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802, ARG002
        """Return a reader for one query."""
        return _WarmUpReader(int(self.options[_TASKS]))


class _WarmUpReader(DataSourceStreamReader):
    def __init__(self, tasks: int) -> None:
        self._tasks = tasks
        self._number = 0

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        return {"number": 0}

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802
        # The last one stays: an idle query is stopped without errors in the log.
        self._number = min(self._number + 1, _EPOCHS)
        return {"number": self._number}

    def partitions(self, start: Any, end: Any) -> list[InputPartition]:  # noqa: ARG002
        # So that every executor has a Python worker with the modules that it needs.
        return [InputPartition(number) for number in range(self._tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        # The modules that the tasks of an epoch load.
        import slackwater.scheduler.spark.stream_reader  # noqa: F401

        yield pa.RecordBatch.from_pylist([{"commit_timestamp": 0}], schema=SCHEMA)


def _written(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    # The modules that the tasks load that write an epoch's files.
    import slackwater.spark_sink.output.file_writer  # noqa: F401

    yield from batches


def warm_up(spark: SparkSession) -> None:
    """Run the query for some epochs, in minutes at most; a failure is only logged."""
    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:

        def write(batch: DataFrame, number: int) -> None:
            # Either way epochs come: as records, or as what tasks hand on.
            batch.write.parquet(f"{folder}/{number}")
            map_in_arrow(batch, _written, batch.schema).toArrow()

        try:
            spark.dataSource.register(WarmUpSource)
            query = (
                spark.readStream.format(_NAME)
                .option(_TASKS, spark.sparkContext.defaultParallelism)
                .load()
                .writeStream.foreachBatch(write)
                .option("checkpointLocation", f"{folder}/checkpoint")
                .start()
            )
            until = time.monotonic() + _SECONDS_MAX
            while (
                query.isActive and len(query.recentProgress) < _EPOCHS and time.monotonic() < until
            ):
                time.sleep(0.1)
            query.stop()
        except FAILED_CALL as error:
            _log.warning("not warmed up", error=type(error).__name__)


def keep_warm(spark: SparkSession, is_over: threading.Event) -> None:
    """Keep the Python workers until they are needed, or can't be kept; that is only logged."""
    tasks = spark.sparkContext.defaultParallelism
    try:
        while not is_over.wait(_KEEP_EVERY_S):
            map_in_arrow(spark.range(0, tasks, 1, tasks), _written, "id long").toArrow()
    except FAILED_CALL as error:
        _log.warning("not kept warm", error=type(error).__name__)
