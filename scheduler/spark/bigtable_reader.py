"""The epochs of a table of Bigtable's, as Spark's micro-batches."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from slackwater.reader.bigtable.records import records_of
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.scheduler.bigtable.planner import TabletPlanner, TabletTask
from slackwater.scheduler.bigtable.tablet_task import read_tablets
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.spark.epochs_reader import EpochsReader, Offset
from slackwater.scheduler.spark.temporary_store import go_on_in
from slackwater.state.store import Store

BigtableOptions = SourceOptions[BigtableTable]
# The field of an offset with the temporary store that has its positions.
_STORE: Final = "state_url"


class TabletPartition(InputPartition):
    """The input of a Spark task: a task of the plan."""

    def __init__(self, task: TabletTask) -> None:
        super().__init__(task.index)
        self.task = task


class BigtableChangesStreamReader(EpochsReader[TabletTask]):
    """The epochs of a table of Bigtable's; see EpochsReader."""

    _options: BigtableOptions

    def _make_planner(self, store: Store) -> TabletPlanner:
        source = BigtableSource(service_of(self._options.change_stream))
        return TabletPlanner(self._options, source, store)

    def _offset(self, watermark_ns: int | None) -> Offset:
        offset = super()._offset(watermark_ns)
        options = self._options
        return offset if options.is_state_lasting else {**offset, _STORE: options.state_url}

    def _go_on_after(self, offset: Offset) -> None:
        # What is not this pipeline's is refused when the low watermark is read.
        options = self._options
        other = None if options.is_state_lasting else offset.get(_STORE)
        if other and go_on_in(other, options.state_url):
            self._planner = None

    def _inputs(self, tasks: Sequence[TabletTask]) -> list[InputPartition]:
        return [TabletPartition(task) for task in tasks]

    def _batches(self, partition: Any, store: Store) -> Iterator[pa.RecordBatch]:
        options, table = self._options, self._options.change_stream
        changes = read_tablets(
            partition.task,
            store=store,
            service=service_of(table),
            heartbeat_ms=options.heartbeat_ms,
            options=options.read,
        )
        return records_of(table, changes) if table.columns else changes


# As scheduler.spark.stream_reader has connections: opened once, after the fork.
@cache
def service_of(table: BigtableTable) -> BigtableService:
    """Return this process's connection to a table."""
    return BigtableService(table)
