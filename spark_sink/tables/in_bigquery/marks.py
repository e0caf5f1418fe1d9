"""The table with the low watermarks of pipelines, as one of them keeps it.

Each transaction changes the pipeline's row in it. Without transactions each epoch adds a row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

import pyarrow as pa

from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.bigquery.dataset import Dataset
from slackwater.spark_sink.output.bigquery.schema import fields_of
from slackwater.spark_sink.tables.in_bigquery.changelog_views import MARKS
from slackwater.spark_sink.tables.in_bigquery.merge import first_mark
from slackwater.spark_sink.tables.in_bigquery.time_travel import Mark, time_of
from slackwater.timestamp import datetime_to_us

_log = logging.getLogger(__name__)
_SCHEMA: Final = pa.schema(
    {
        "pipeline": pa.string(),
        "low_watermark": pa.timestamp("us", "UTC"),
        # Of a scan of mirrors: a chunk that was inserted.
        "chunk": pa.string(),
        # Of mirrors: the full names of tables that lack rows.
        "incomplete": pa.list_(pa.string()),
        # Of mirrors: changed by each, so that one of two at the same time fails.
        "transactions": pa.int64(),
    }
)
# Of low watermarks, until old ones are removed: they take less than the 10 MB that BigQuery bills
# at least for a table in a query.
ROWS_MAX: Final = 100_000
_HOUR_US: Final = 3_600 * 1_000_000


class Marks:
    """The marks of a pipeline.

    Args:
        dataset: the table's.
        pipeline: its name.
        has_transactions: each transaction changes one row.

    Attributes:
        id: the table's.
    """

    def __init__(self, dataset: Dataset, pipeline: str, *, has_transactions: bool) -> None:
        self._dataset = dataset
        self._pipeline = pipeline
        self._has_transactions = has_transactions
        self.id = dataset.address(MARKS).id
        self._is_made = False
        # As far as this process knows, since old ones were removed.
        self._count = 0
        self._last_time: tuple[datetime, int | None] | None = None

    def make(self) -> None:
        """Make the table, unless it is there."""
        if self._is_made:
            return
        self._dataset.make(MARKS, fields_of(_SCHEMA), clustering_fields=["pipeline"])
        if self._has_transactions:
            self._dataset.run(first_mark(self.id, self._pipeline), "a transaction", MARKS)
        self._is_made = True

    def row(
        self, low_watermark: datetime | None, chunk: str | None, incomplete: Sequence[str]
    ) -> list[pa.RecordBatch]:
        """Return the row that states a low watermark, or a chunk."""
        row = {
            "pipeline": self._pipeline,
            "low_watermark": low_watermark,
            "chunk": chunk,
            "incomplete": incomplete,
        }
        batches: list[pa.RecordBatch] = pa.Table.from_pylist([row], _SCHEMA).to_batches()
        return batches

    def chunks(self) -> int:
        """Return the number of chunks, after old low watermarks were removed."""
        text = (
            f"SELECT COUNT(chunk), COUNT(low_watermark) FROM `{self.id}` WHERE pipeline = @pipeline"
        )
        [[chunks, count]] = self._run(text, "a query")
        self.add(count)
        return int(chunks)

    def add(self, count: int = 1) -> None:
        """Count low watermarks, and remove those of more than a day before the newest, if many.

        Views, the log and states ask for the newest, which stays whoever runs this, and when. It
        does not fail an epoch: rows that were just streamed may be refused.
        """
        self._count += count
        if self._has_transactions or self._count < ROWS_MAX:
            return
        self._count = 0
        of_pipeline = f"`{self.id}` WHERE pipeline = @pipeline"
        newest = f"SELECT MAX(low_watermark) FROM {of_pipeline}"
        text = (
            f"DELETE FROM {of_pipeline} AND chunk IS NULL"
            f" AND low_watermark < TIMESTAMP_SUB(({newest}), INTERVAL 1 DAY)"
        )
        try:
            self._run(text, "removing low watermarks")
        except SinkError as error:
            _log.warning("%s", error.message)

    def time_of(self, low_watermark: datetime) -> int | None:
        """Return a time at which all mirrors were as of a low watermark, in microseconds.

        By BigQuery's clock; None if it reads them as of such a time no more.
        """
        last = self._last_time
        if last is None or last[0] != low_watermark:
            [[now_us]] = self._run("SELECT UNIX_MICROS(CURRENT_TIMESTAMP())", "a query")
            # The time that is named is good for an hour.
            oldest_us = now_us - (self._dataset.time_travel_hours - 1) * _HOUR_US
            made = self._dataset.table(MARKS)
            if made is not None:
                # It tells milliseconds.
                oldest_us = max(oldest_us, datetime_to_us(made.created) + 1_000)
            time_us = time_of(datetime_to_us(low_watermark), self._at, oldest_us, now_us)
            last = self._last_time = low_watermark, time_us
        return last[1]

    def _at(self, time_us: int) -> Mark:
        text = (
            f"SELECT UNIX_MICROS(low_watermark), transactions FROM `{self.id}`"
            f" FOR SYSTEM_TIME AS OF TIMESTAMP_MICROS({time_us})"
            " WHERE pipeline = @pipeline AND chunk IS NULL"
        )
        for low_watermark_us, transactions in self._run(text, "a query"):
            return Mark(time_us, low_watermark_us or 0, transactions or 0)
        return Mark(time_us)

    def _run(self, text: str, purpose: str) -> Iterable[Sequence[int]]:
        rows: Iterable[Sequence[int]] = self._dataset.run(
            text, purpose, MARKS, pipeline=self._pipeline
        )
        return rows
