"""The choice of an epoch's records to write, and their counts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

# The column with the day of the commit, in UTC.
DATE_COLUMN: Final = "date"
# A record without it is a transaction.
RECORDS_COLUMN: Final = "number_of_records_in_transaction"


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rows of an epoch that are to be written once.

    Attributes:
        frame: the rows.
        summary: returns the summary of the epoch's records, after they were written.
    """

    frame: DataFrame
    summary: Callable[[], EpochSummary]


@dataclass(frozen=True)
class Preparation:
    """The conversion of the rows that are read to those that are written.

    Attributes:
        record_filter: which records are written, and which of their columns.
        transform: converts the contract's rows to those to write; None writes them as they are.
        has_date: whether DATE_COLUMN is added.
        distinct: the columns of records whose values are collected, if tasks write them.
        has_message_bytes: whether the bytes of messages are estimated, if tasks write the records.
    """

    record_filter: RecordFilter = field(default_factory=RecordFilter)
    transform: Callable[[DataFrame], DataFrame] | None = None
    has_date: bool = False
    distinct: tuple[str, ...] = ()
    has_message_bytes: bool = False

    @property
    def writes_records(self) -> bool:
        """Whether records that are written have the columns of those that are read."""
        return self.transform is None

    def schema_of(self, records: StructType) -> StructType:
        """Return the columns of the written rows of records, if writes_records."""
        from pyspark.sql.types import DateType, StructType

        written = StructType(list(records))
        return written.add(DATE_COLUMN, DateType()) if self.has_date else written

    def unfiltered(self) -> Preparation:
        """Return the same for an initial scan, whose reads are filtered."""
        return replace(self, record_filter=RecordFilter())

    def prepare(self, epoch: DataFrame) -> Prepared:
        """Return the rows to write of an epoch."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        read, written = Observation(), Observation()
        frame = epoch.observe(read, *self._observed_metrics(RECORDS_COLUMN in epoch.columns))
        if self.record_filter != RecordFilter():
            frame = map_in_arrow(frame, self.record_filter.apply_to_batches, frame.schema)
        frame = frame.observe(written, F.count(F.lit(1)).alias("rows"))
        if self.transform is not None:
            frame = self.transform(frame)
        if self.has_date:
            frame = frame.withColumn(DATE_COLUMN, F.to_date("commit_timestamp"))
        return Prepared(frame, lambda: _summary(read.get, written.get))

    @cached_property
    def _observed_metrics(self) -> Callable[[bool], Sequence[Column]]:
        """The metrics observed of an epoch; made once, because each step is a call to the JVM."""
        return cache(_metrics)


def _metrics(has_transactions: bool) -> Sequence[Column]:
    """Return the metrics observed of an epoch.

    Args:
        has_transactions: whether records say of how many records their transaction is; otherwise
            each is one.
    """
    from pyspark.sql import functions as F

    # Each of a transaction's n records counts as one nth of it.
    part = F.lit(1.0) / F.col(RECORDS_COLUMN) if has_transactions else F.lit(1.0)
    return (
        F.count(F.lit(1)).alias("records"),
        F.sum(part).alias("transactions"),
        F.min("commit_timestamp").alias("first"),
        F.max("commit_timestamp").alias("last"),
    )


def _summary(read: Mapping[str, Any], written: Mapping[str, Any]) -> EpochSummary:
    return EpochSummary(
        records=read["records"],
        written=written["rows"],
        transactions=round(read["transactions"] or 0),
        commit_timestamp_min=read["first"],
        commit_timestamp_max=read["last"],
    )
