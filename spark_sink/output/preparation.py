"""What of an epoch's records is written, and what is counted on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Observation
    from pyspark.sql.types import StructType

# The column with the day of the commit, in UTC.
DATE_COLUMN: Final = "date"
# What a message holds besides the values of its mod: names, types, the transaction.
MESSAGE_OVERHEAD_BYTES: Final = 2_000
# The values of a mod.
TEXTS: Final = ("keys", "new_values", "old_values")


@dataclass(frozen=True, slots=True)
class Counts:
    """What was counted while an epoch was written.

    Attributes:
        summary: of its records.
        rows: of what is written: of messages, not of the records that they come from.
        distinct: by column, the values in the records before the filter.
        message_bytes: an estimate of what the records' messages take, before the filter; None if
            it was not asked for.
    """

    summary: EpochSummary
    rows: int
    distinct: Mapping[str, frozenset[str]]
    message_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """The rows of an epoch that are to be written once.

    Attributes:
        frame: the rows.
        counts: returns what was counted, after they were written.
    """

    frame: DataFrame
    counts: Callable[[], Counts]


class Preparation:
    """Makes the rows that are written of those that are read.

    Args:
        record_filter: which records are written, and which of their columns.
        transform: turns the contract's rows into what is written; None writes them as they are.
        has_date: whether DATE_COLUMN is added.
        distinct: the columns of records whose values are collected.
        has_message_bytes: whether the bytes of messages are estimated.
    """

    def __init__(
        self,
        record_filter: RecordFilter | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        *,
        has_date: bool = False,
        distinct: Sequence[str] = (),
        has_message_bytes: bool = False,
    ) -> None:
        self.record_filter = record_filter or RecordFilter()
        self._transform = transform
        self.has_date = has_date
        self.distinct_columns = tuple(distinct)
        self.has_message_bytes = has_message_bytes

    @property
    def writes_records(self) -> bool:
        """Whether records that are written have the columns of those that are read."""
        return self._transform is None

    def schema_of(self, records: StructType) -> StructType:
        """Return the columns of what is written of records, if writes_records."""
        from pyspark.sql.types import DateType, StructType

        written = StructType(list(records))
        return written.add(DATE_COLUMN, DateType()) if self.has_date else written

    def unfiltered(self) -> Preparation:
        """Return the same for an initial scan, whose reads are filtered."""
        return Preparation(
            None,
            self._transform,
            has_date=self.has_date,
            distinct=self.distinct_columns,
            has_message_bytes=self.has_message_bytes,
        )

    def prepare(self, epoch: DataFrame) -> Prepared:
        """Return what is written of an epoch."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        read, written, shaped = Observation(), Observation(), Observation()
        count = F.count(F.lit(1)).alias("rows")
        frame = epoch.observe(read, *self._observed_metrics)
        if not self.record_filter.keeps_all:
            frame = frame.where(self._condition)
            frame = frame.observe(written, count)
        frame = self.record_filter.column_filter.apply_to_frame(frame)
        if self._transform is not None:
            frame = self._transform(frame).observe(shaped, count)
        if self.has_date:
            frame = frame.withColumn(DATE_COLUMN, F.to_date("commit_timestamp"))
        return Prepared(frame, lambda: self._counts(read, written, shaped))

    def _counts(self, read: Observation, written: Observation, shaped: Observation) -> Counts:
        metrics: Mapping[str, Any] = read.get
        records = metrics["records"] if self.record_filter.keeps_all else written.get["rows"]
        rows = records if self._transform is None else shaped.get["rows"]
        summary = EpochSummary(
            records=metrics["records"],
            written=records,
            transactions=round(metrics["transactions"] or 0),
            commit_timestamp_min=metrics["first"],
            commit_timestamp_max=metrics["last"],
        )
        distinct = {name: frozenset(metrics[name] or ()) for name in self.distinct_columns}
        message_bytes = (metrics["message_bytes"] or 0) if self.has_message_bytes else None
        return Counts(summary, rows, distinct, message_bytes)

    @cached_property
    def _observed_metrics(self) -> Sequence[Column]:
        """The metrics observed of an epoch; made once, because each step is a call to the JVM."""
        from pyspark.sql import functions as F

        sizes = [F.sum(_message_bytes()).alias("message_bytes")] if self.has_message_bytes else []
        return (
            *sizes,
            *(F.collect_set(name).alias(name) for name in self.distinct_columns),
            F.count(F.lit(1)).alias("records"),
            # Each of a transaction's n records counts as one nth of it.
            F.sum(F.lit(1.0) / F.col("number_of_records_in_transaction")).alias("transactions"),
            F.min("commit_timestamp").alias("first"),
            F.max("commit_timestamp").alias("last"),
        )

    @cached_property
    def _condition(self) -> Column:
        return self.record_filter.condition()


def _message_bytes() -> Column:
    """Return an estimate of what the messages of a record's mods take."""
    from pyspark.sql import functions as F

    def add(total: Column, mod: Column) -> Column:
        texts = (F.coalesce(F.octet_length(mod[name]), F.lit(0)) for name in TEXTS)
        return sum(texts, total + F.lit(MESSAGE_OVERHEAD_BYTES))

    return F.aggregate("mods", F.lit(0).cast("long"), add)
