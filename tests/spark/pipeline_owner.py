"""A pipeline with a sink of Spark's whose epochs are read in the test's process.

In place of a kill, another owner goes on: with a new sink, a new rescanner and a new planner, under
a new lease.
"""

import threading
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.config.sinks import make_sink
from slackwater.pipeline.epochs.rescanner import Rescanner
from slackwater.pipeline.epochs.schema_watch import SchemaWatch
from slackwater.pipeline.epochs.writer import EpochWatch
from slackwater.pipeline.source import connect
from slackwater.reader import schema
from slackwater.spark_sink.sink import CurrentRows
from slackwater.state.lease import acquire_lease, read_lease
from slackwater.state.models import Plan
from slackwater.timestamp import ns_to_datetime
from tests.support.epochs import EpochLoop


class Owner:
    """One owner of the pipeline, from its start to its death."""

    def __init__(self, spark: SparkSession, settings: Settings, loop: EpochLoop) -> None:
        self._spark = spark
        self.loop = loop
        store = loop.store
        lease = acquire_lease(store, "orders", "owner", read_lease(store, "orders"))
        assert lease is not None
        self._sink = make_sink(settings)
        self._sink.position(spark)
        self._source = connect(settings)
        held: Any = SimpleNamespace(generation=lease.generation)
        self.rescanner = Rescanner(spark, settings, self._source, store, held, self._sink)
        self._watches: list[EpochWatch] = [self.rescanner]
        if isinstance(self._sink, CurrentRows):
            watch = SchemaWatch(self._source, self._sink, self.rescanner.note_schema)
            self._watches.insert(0, watch)

    def epoch(self, number: int, *, dies: bool) -> None:
        """Read and write an epoch; an owner that dies has not noted what became of its chunk."""
        start_ns = self.loop.watermark_ns
        read = self.loop.epoch()
        # Spark takes no table without chunks.
        if read.num_rows:
            records = self._spark.createDataFrame(read)
        else:
            records = self._spark.createDataFrame([], schema.ddl())
        end_ns = self.loop.watermark_ns
        assert start_ns is not None
        assert end_ns is not None
        plan = Plan("plan", "pipeline", start_ns, end_ns)
        summary = self._sink.stage(records, number)
        for watch in self._watches:
            watch.inspect(plan)
        self._sink.publish(self._spark, number, summary, ns_to_datetime(end_ns))
        # A pipeline's epochs go on meanwhile; these are counted.
        for thread in threading.enumerate():
            if thread.name == "rescan-warm-up":
                thread.join()
        if not dies:
            for watch in self._watches:
                watch.published(end_ns)

    def close(self) -> None:
        self._source.connection.close()
        self.loop.close()
