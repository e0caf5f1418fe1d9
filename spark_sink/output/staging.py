"""Staged epochs: files that readers of the output ignore until the epoch is audited."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import write_options
from slackwater.spark_sink.output.epoch_directory import EpochDirectory
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# The column with the day of the commit, in UTC.
DATE_COLUMN: Final = "date"


@dataclass(frozen=True, slots=True)
class StagedFiles:
    """The folder of a staged epoch, which has no other files.

    Attributes:
        folder: its path or URL.
        rows: the number of rows in all files: of messages, not of the records that they come from.
    """

    folder: str
    rows: int


class Staging:
    """Writes epochs to the staging directory of one owner.

    Args:
        path: the output's directory, a path or URL that Spark accepts.
        file_format: Spark's name of the format.
        record_filter: which records are written, and which of their columns.
        transform: turns the contract's rows into what is written; None writes them as they are.
        partition_by: columns that name the folders of what is written.
        has_date: whether DATE_COLUMN is added.
        distinct: the columns of records that distinct() is asked for.
    """

    def __init__(
        self,
        path: str,
        file_format: str,
        record_filter: RecordFilter | None = None,
        transform: Callable[[DataFrame], DataFrame] | None = None,
        partition_by: Sequence[str] = (),
        *,
        has_date: bool = False,
        distinct: Sequence[str] = (),
    ) -> None:
        self._path = path
        self._distinct_columns = tuple(distinct)
        self._partition_by = tuple(partition_by)
        self._has_date = has_date
        self._transform = transform
        self._format = file_format
        self._filter = record_filter or RecordFilter()
        self._owner = uuid.uuid4().hex
        self._is_taken_over = False
        # Of the epoch that was staged last.
        self._rows: dict[int, int] = {}
        self._distinct: dict[int, Mapping[str, frozenset[str]]] = {}
        # Kept, because inferring it from the staged files would take a Spark job.
        self._schema: StructType | None = None

    def for_scan(self) -> Staging:
        """Return a staging for an initial scan: unfiltered, as the scan's reads are filtered."""
        return Staging(
            self._path,
            self._format,
            transform=self._transform,
            partition_by=self._partition_by,
            has_date=self._has_date,
            distinct=self._distinct_columns,
        )

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write one epoch, and return what it held."""
        from pyspark.sql import Observation
        from pyspark.sql import functions as F

        directory = self.epoch_directory(epoch.sparkSession)
        self.take_over(epoch.sparkSession)
        read, written, staged = Observation(), Observation(), Observation()
        count = F.count(F.lit(1)).alias("rows")
        observed = epoch.observe(read, *self._observed_metrics)
        if not self._filter.keeps_all:
            observed = observed.where(self._condition)
            observed = observed.observe(written, count)
        observed = self._filter.column_filter.apply_to_frame(observed)
        transformed = observed
        if self._transform is not None:
            transformed = self._transform(observed).observe(staged, count)
        if self._has_date:
            transformed = transformed.withColumn(DATE_COLUMN, F.to_date("commit_timestamp"))
        if self._format == "text":
            # The text format takes no other columns.
            transformed = transformed.select("value", *self._partition_by)
        if self._schema is None:
            self._schema = transformed.schema
        options = write_options(self._format)
        writer = transformed.write.format(self._format).options(**options).mode("overwrite")
        writer.partitionBy(*self._partition_by).save(directory.staging(epoch_id))
        metrics = read.get
        records = metrics["records"] if self._filter.keeps_all else written.get["rows"]
        rows = records if self._transform is None else staged.get["rows"]
        self._rows = {epoch_id: rows}
        self._distinct = {
            epoch_id: {name: frozenset(metrics[name] or ()) for name in self._distinct_columns}
        }
        return EpochSummary(
            records=metrics["records"],
            written=records,
            transactions=round(metrics["transactions"] or 0),
            commit_timestamp_min=metrics["first"],
            commit_timestamp_max=metrics["last"],
        )

    def take_over(self, spark: SparkSession) -> None:
        """Remove, at the first call, what former owners have staged.

        A former owner that was frozen then has nothing left that it could make visible.
        """
        if not self._is_taken_over:
            self.epoch_directory(spark).remove_other_staging()
            self._is_taken_over = True

    def read_staged(self, spark: SparkSession, epoch_id: int) -> DataFrame:
        """Return the rows of a staged epoch."""
        assert self._schema is not None  # noqa: S101 - set by stage()
        reader = spark.read.format(self._format).schema(self._schema)
        return reader.load(self.epoch_directory(spark).staging(epoch_id))

    def staged_files(self, spark: SparkSession, epoch_id: int) -> StagedFiles:
        """Return the files of a staged epoch, which are to be published."""
        folder = self.epoch_directory(spark).staging(epoch_id)
        return StagedFiles(folder, self._rows[epoch_id])

    def distinct(self, epoch_id: int, column: str) -> frozenset[str]:
        """Return the values of a column in the records of an epoch, before the filter."""
        return self._distinct[epoch_id][column]

    def epoch_directory(self, spark: SparkSession) -> EpochDirectory:
        """Return the output's directory, which contains the staging directory."""
        return EpochDirectory(spark, self._path, self._owner)

    @cached_property
    def _observed_metrics(self) -> Sequence[Column]:
        """The metrics observed of an epoch; made once, because each step is a call to the JVM."""
        from pyspark.sql import functions as F

        return (
            *(F.collect_set(name).alias(name) for name in self._distinct_columns),
            F.count(F.lit(1)).alias("records"),
            # Each of a transaction's n records counts as one nth of it.
            F.sum(F.lit(1.0) / F.col("number_of_records_in_transaction")).alias("transactions"),
            F.min("commit_timestamp").alias("first"),
            F.max("commit_timestamp").alias("last"),
        )

    @cached_property
    def _condition(self) -> Column:
        return self._filter.condition()
