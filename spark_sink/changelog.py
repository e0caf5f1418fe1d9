"""The changelog: every data change record as Spanner sent it, an epoch a directory."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import StructType

from spark_sink.delta_table import DeltaTable
from spark_sink.epoch_directory import EpochDirectory
from spark_sink.errors import UnknownFormatError
from spark_sink.filters import Filter
from spark_sink.formats import DELTA, FORMATS


@dataclass(frozen=True, slots=True)
class EpochSummary:
    """What an epoch held.

    Attributes:
        records: data change records that were read.
        written: those of them that the filter keeps.
        transactions: transactions.
        commit_timestamp_min, commit_timestamp_max: UTC; None in an empty epoch.
        low_watermark: that of the rows, in whole microseconds; None in an empty epoch.
    """

    records: int
    written: int
    transactions: int
    commit_timestamp_min: datetime | None
    commit_timestamp_max: datetime | None
    low_watermark: datetime | None


class Changelog:
    """Writes epochs under a path, each exactly once however often it is replayed.

    Args:
        path: a directory, as Spark takes it; made if missing.
        file_format: one of FORMATS. In a Delta table an epoch is a commit, otherwise a directory.
        pipeline: the pipeline's name.
        kept: which records are written.

    Raises:
        UnknownFormatError: the format is none of FORMATS.
    """

    def __init__(
        self, path: str, file_format: str, pipeline: str, kept: Filter | None = None
    ) -> None:
        if file_format not in FORMATS:
            raise UnknownFormatError(
                f"the changelog has no format {file_format!r}.", f"Known: {', '.join(FORMATS)}"
            )
        self._path = path
        self._format = file_format
        self._pipeline = pipeline
        self._filter = kept or Filter()
        self._owner = uuid.uuid4().hex
        self._has_staged = False
        # To infer it from the staged files would take a job of Spark's.
        self._staged_schema: StructType | None = None
        self._delta: DeltaTable | None = None

    def last_low_watermark(self, spark: SparkSession) -> datetime | None:
        """That of the newest visible epoch, in whole microseconds; None where there is none."""
        if self._format == DELTA:
            return self._table(spark).last_low_watermark()
        return self._directory(spark).last_low_watermark()

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write one epoch where no reader sees it yet.

        Args:
            epoch: rows of the contract's columns.
            epoch_id: Spark's number of the micro-batch.
        """
        directory = self._directory(epoch.sparkSession)
        if not self._has_staged:
            directory.remove_other_staging()
            self._has_staged = True
        if self._staged_schema is None:
            self._staged_schema = epoch.schema
        read, written = Observation(), Observation()
        observed = epoch.observe(read, *self._metrics)
        # Files of a Delta table are not its rows before they are in its log, but a commit can't be
        # held back until the audit is done: so they are staged like any others.
        staged = "parquet" if self._format == DELTA else self._format
        if not self._filter.keeps_all:
            kept = observed.where(self._filter.condition())
            observed = kept.observe(written, F.count(F.lit(1)).alias("records"))
        observed.write.format(staged).mode("overwrite").save(directory.staging(epoch_id))
        metrics = read.get
        return EpochSummary(
            records=metrics["records"],
            written=metrics["records"] if self._filter.keeps_all else written.get["records"],
            transactions=round(metrics["transactions"] or 0),
            commit_timestamp_min=metrics["first"],
            commit_timestamp_max=metrics["last"],
            low_watermark=metrics["low_watermark"],
        )

    def publish(self, spark: SparkSession, epoch_id: int, summary: EpochSummary) -> None:
        """Make a staged epoch visible at once, unless it was visible before a replay.

        An empty epoch leaves nothing behind.

        Raises:
            PublishError: the file system refused, or another process wrote at the same time.
        """
        directory = self._directory(spark)
        if summary.low_watermark is None or not summary.written:
            directory.discard(epoch_id)
        elif self._format == DELTA:
            assert self._staged_schema is not None  # noqa: S101 - it was staged before
            staged = spark.read.schema(self._staged_schema).parquet(directory.staging(epoch_id))
            self._table(spark).append(staged, summary.low_watermark)
            directory.discard(epoch_id)
        else:
            directory.publish(epoch_id, summary.low_watermark)

    @cached_property
    def _metrics(self) -> Sequence[Column]:
        """What is observed of an epoch; made once, since each step of it is a call to the JVM."""
        return (
            F.count(F.lit(1)).alias("records"),
            # Each of a transaction's n records counts as one nth of it.
            F.sum(F.lit(1.0) / F.col("number_of_records_in_transaction")).alias("transactions"),
            F.min("commit_timestamp").alias("first"),
            F.max("commit_timestamp").alias("last"),
            F.max("low_watermark").alias("low_watermark"),
        )

    def _table(self, spark: SparkSession) -> DeltaTable:
        if self._delta is None:
            self._delta = DeltaTable(spark, self._path, f"slackwater {self._pipeline}")
        return self._delta

    def _directory(self, spark: SparkSession) -> EpochDirectory:
        return EpochDirectory(spark, self._path, self._owner)
