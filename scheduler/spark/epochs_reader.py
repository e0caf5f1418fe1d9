"""Epochs as Spark's micro-batches: the methods that a streaming query calls, whatever the source.

One micro-batch is one epoch, and the offset is its low watermark: Spark's checkpoint is the epoch
log. Spark plans in one Python process (offsets, partitions, commit) and reads in others, so all
that they share crosses through the options and the metadata store. Errors of ours leave each of
these processes as worker_errors says.

The offset {"low_watermark": null} stands before the first epoch.
"""

import functools
import gc
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar
from zipimport import zipimporter

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from slackwater.scheduler.epoch import is_watermark
from slackwater.scheduler.epoch_planner import EpochPlanner
from slackwater.scheduler.errors import ForeignCheckpointError
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.read_options import NOW
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339, parse_rfc3339
from slackwater.worker_errors import encoded_errors

Offset = dict[str, Any]
# From the batches of a task's records to those of the query's rows.
ToRows = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
T = TypeVar("T")


class EpochsReader(ABC, Generic[T]):
    """Epochs as micro-batches: what a DeferredReader does. A plan's tasks are of type T.

    Args:
        options: the query's.
        to_rows: makes the query's rows of the source's records; None if they are its rows.
    """

    def __init__(self, options: SourceOptions[Any], to_rows: ToRows | None = None) -> None:
        self._options = options
        self._to_rows = to_rows
        self._planner: EpochPlanner[T, Any] | None = None
        self._base_ns: int | None = None
        self._available_now_ns: int | None = None
        self._has_chosen = False

    @abstractmethod
    def _make_planner(self, store: Store) -> EpochPlanner[T, Any]:
        """Return the planner of the query's epochs."""

    @abstractmethod
    def _inputs(self, tasks: Sequence[T]) -> list[InputPartition]:
        """Return what Spark carries to the workers that read tasks."""

    @abstractmethod
    def _batches(self, partition: Any, store: Store) -> Iterator[pa.RecordBatch]:
        """Read the records of one of _inputs(), in a worker."""

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset before the first epoch."""
        return self._offset(None)

    @encoded_errors()
    def latestOffset(self, start: Offset | None = None) -> Offset:  # noqa: N802
        """Return the offset at which the next epoch ends.

        Args:
            start: the offset at which it starts; Spark 4.1 does not pass it.
        """
        if start is not None:
            self._go_on_after(start)
        planner = self._planning()
        is_bounded = start is not None or self._has_chosen or self._knows_checkpoint()
        self._has_chosen = True
        if start is not None:
            self._base_ns = self._watermark_ns(start)
            is_first = self._base_ns is None
        else:
            if self._base_ns is None and not self._options.is_checkpoint_empty:
                # The store may be older than the checkpoint.
                checkpoint_ns = self._options.checkpoint_ns
                self._base_ns = checkpoint_ns or planner.planned_watermark_ns()
            is_first = self._base_ns is None and self._is_certainly_first()
        if is_first:
            return self._offset(planner.first_watermark_ns())
        return self._offset(
            planner.next_watermark_ns(
                self._base_ns, clock_ns=self._available_now_ns, is_bounded=is_bounded
            )
        )

    @encoded_errors()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Go no further than the present time of the source's clock."""
        self._available_now_ns = self._planning().clock_ns()

    @encoded_errors()
    def partitions(self, start: Offset, end: Offset) -> list[InputPartition]:
        """Plan the epoch (start, end]."""
        self._go_on_after(start)
        self._go_on_after(end)
        planner = self._planning()
        start_ns, end_ns = self._watermark_ns(start), self._watermark_ns(end)
        if end_ns is None:
            return []
        tasks = planner.plan_first(end_ns) if start_ns is None else planner.plan(start_ns, end_ns)
        self._base_ns = end_ns
        return self._inputs(tasks)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task of the plan."""
        with encoded_errors():
            _forget_archives()
            batches = self._batches(partition, _store(self._options.state_url))
            yield from batches if self._to_rows is None else self._to_rows(batches)

    @encoded_errors()
    def commit(self, end: Offset) -> None:
        """Note that the sink has committed the epoch that ends here."""
        self._go_on_after(end)
        watermark_ns = self._watermark_ns(end)
        if watermark_ns is not None:
            self._planning().commit(watermark_ns)

    def _go_on_after(self, offset: Offset) -> None:
        """Prepare to go on after an offset of the checkpoint, which may be another process's."""

    def _is_certainly_first(self) -> bool:
        """Return True if the start is a safe answer although Spark 4.1 hides the checkpoint.

        If the checkpoint were ahead of an early start after all, the low watermark would go back.
        """
        return self._options.is_checkpoint_empty is True or self._options.start == NOW

    def _knows_checkpoint(self) -> bool:
        """Return True if Spark 4.1 is run by a program that bounds its epochs, or asked for it.

        A notebook's first epoch on Spark 4.1 reaches up to now: with AvailableNow, which a source
        does not see there, Spark asks for one offset and stops when it is reached.
        """
        options = self._options
        return options.is_checkpoint_empty is not None or options.checkpoint_ns is not None

    def _planning(self) -> EpochPlanner[T, Any]:
        if self._planner is None:
            self._planner = self._make_planner(Store.open(self._options.state_url, migrate=True))
            # Thousands of partitions an epoch have garbage collected, from among all modules.
            gc.freeze()
        return self._planner

    def _offset(self, watermark_ns: int | None) -> Offset:
        return {
            "pipeline": self._options.pipeline,
            "change_stream": self._options.change_stream.path,
            "low_watermark": None if watermark_ns is None else format_rfc3339(watermark_ns),
        }

    def _watermark_ns(self, offset: Offset) -> int | None:
        """Return the low watermark of an offset of this pipeline's.

        Raises:
            ForeignCheckpointError: the offset is another pipeline's or change stream's.
        """
        expected = self._offset(None)
        for key in ("pipeline", "change_stream"):
            if offset.get(key) != expected[key]:
                raise ForeignCheckpointError(
                    f"{key} {offset.get(key)!r}", f"{key} {expected[key]!r}"
                )
        if offset["low_watermark"] is None:
            return None
        watermark_ns = parse_rfc3339(offset["low_watermark"])
        if not is_watermark(watermark_ns):
            raise ForeignCheckpointError(f"offset {offset}", "a pipeline whose offsets end in 500")
        return watermark_ns


def _forget_archives() -> None:
    """Make the next task of this process start some 130 ms sooner.

    Before each task Spark's worker invalidates the import system's caches, and up to Python 3.11
    every importer of an archive then reads its whole directory: pyspark.zip's, many times, and
    those of Spark's jars. A new importer, made for the next import, takes the directory from
    zipimport's own cache.
    """
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimporter):
            del sys.path_importer_cache[path]


@functools.cache
def _store(url: str) -> Store:
    return Store.open(url, migrate=False)
