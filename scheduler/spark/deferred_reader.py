"""A stream reader for Spark whose modules are loaded by the process that uses it.

Spark makes a query's reader three times, and one of these processes only hands it on to the tasks.
To load Spanner's client there, too, would make each start half a second longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from slackwater.worker_errors import encoded_errors

if TYPE_CHECKING:
    from slackwater.scheduler.spark.epochs_reader import EpochsReader, Offset

try:  # Spark 4.2 has it, 4.1 does not.
    from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow as _AvailableNow
except ImportError:

    class _AvailableNow:  # type: ignore[no-redef]
        """Spark 4.1 offers Python sources no AvailableNow."""


class DeferredReader(DataSourceStreamReader, _AvailableNow):  # type: ignore[misc]
    """The epochs of a source, by a reader that is made for the first call.

    Args:
        make: returns the reader, and loads its modules; a function that can be pickled.
    """

    def __init__(self, make: Callable[[], EpochsReader[Any]]) -> None:
        self._make = make

    @cached_property
    def _reader(self) -> EpochsReader[Any]:
        with encoded_errors():
            return self._make()

    def initialOffset(self) -> Offset:  # noqa: N802
        """Return the offset before the first epoch."""
        return self._reader.initialOffset()

    def latestOffset(self, start: Offset | None = None, limit: object = None) -> Offset:  # noqa: N802, ARG002
        """Return the offset at which the next epoch ends.

        Args:
            start: the offset at which it starts; Spark 4.1 does not pass it.
            limit: a read limit of Spark 4.2's; epochs are bounded by max_span instead.
        """
        return self._reader.latestOffset(start)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Go no further than the present time of the source's clock."""
        self._reader.prepareForTriggerAvailableNow()

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Plan the epoch (start, end]."""
        return self._reader.partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the records of one task of the plan."""
        return self._reader.read(partition)

    def commit(self, end: Offset) -> None:
        """Note that the sink has committed the epoch that ends here."""
        self._reader.commit(end)
