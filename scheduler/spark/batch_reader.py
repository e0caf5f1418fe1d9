"""A batch read: the methods that spark.read calls.

Spark plans in one Python process, which cuts the read into slices, and reads each slice in another,
as scheduler.batch_read says. They share nothing but the options, so a cluster needs no metadata
store for it. Spark may read a slice again: it holds the same records each time.
"""

import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from slackwater.reader.database.change_stream_info import ChangeStreamInfo
from slackwater.scheduler.batch_read import cut_to_read, read_slice, require_bounds, slices
from slackwater.scheduler.epoch import Cut
from slackwater.scheduler.options import StreamOptions
from slackwater.scheduler.spanner_source import SpannerSource
from slackwater.scheduler.spark.epochs_reader import ToRows
from slackwater.scheduler.spark.stream_reader import connection_of
from slackwater.state.store import Store
from slackwater.worker_errors import encoded_errors


class SlicePartition(InputPartition):
    """The input of a Spark task: a slice, and the change stream's properties."""

    def __init__(self, cut: Cut, info: ChangeStreamInfo) -> None:
        super().__init__(cut.end_ns)
        self.cut = cut
        self.info = info


class SpannerChangesBatchReader(DataSourceReader):
    """A read between two times; its methods are called by Spark.

    Args:
        options: the query's.
        to_rows: makes the query's rows of data change records; None if they are its rows.
    """

    def __init__(self, options: StreamOptions, to_rows: ToRows | None = None) -> None:
        require_bounds(options)
        self._options = options
        self._to_rows = to_rows

    @encoded_errors()
    def partitions(self) -> list[InputPartition]:
        """Return the slices to read."""
        options = self._options
        source = SpannerSource(connection_of(options.change_stream), options.heartbeat_ms)
        cut = cut_to_read(options, source)
        return [
            SlicePartition(part, source.info()) for part in slices(cut, count_max=options.tasks_max)
        ]

    def read(self, partition: SlicePartition) -> Iterator[pa.RecordBatch]:  # type: ignore[override]
        """Read the records of one slice."""
        options = self._options
        with encoded_errors(), tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
            connection = connection_of(options.change_stream)
            source = SpannerSource(connection, options.heartbeat_ms, info=partition.info)
            # The options' own store, if any, belongs to a pipeline.
            url = f"sqlite:///{Path(folder) / 'state.db'}"
            own = replace(options, state_url=url, is_state_lasting=False, generation=None)
            with closing(Store.open(url, migrate=True)) as store:
                batches = read_slice(partition.cut, own, source, store)
                yield from batches if self._to_rows is None else self._to_rows(batches)
