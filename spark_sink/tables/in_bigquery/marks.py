"""The table with the low watermarks of pipelines, as one of them keeps it.

Each transaction changes the pipeline's row in it. Without transactions each epoch adds a row.

BigQuery reads a table as of a time of its own, not of Spanner's. So the row that each transaction
changes is looked at as of several times, until one transaction alone lies between two of them.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import pyarrow as pa

from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.output.bigquery.dataset import Dataset
from slackwater.spark_sink.output.bigquery.schema import fields_of
from slackwater.spark_sink.tables.in_bigquery.changelog_views import MARKS
from slackwater.spark_sink.tables.in_bigquery.merge import first_mark
from slackwater.timestamp import datetime_to_us

# A transaction that states a low watermark comes after it, by Google's clocks.
_BEFORE_US: Final = 60 * 1_000_000
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


@dataclass(frozen=True, slots=True)
class Mark:
    """The low watermark of a pipeline at a time; all times are in microseconds.

    Attributes:
        time_us: the time, by BigQuery's clock.
        low_watermark_us: 0 before the first.
        transactions: how many had changed the row.
    """

    time_us: int
    low_watermark_us: int = 0
    transactions: int = 0


def time_of(
    low_watermark_us: int, mark_at: Callable[[int], Mark], oldest_us: int, now_us: int
) -> int | None:
    """Return a time at which mirrors had all epochs up to a low watermark, and none after it.

    An epoch of many tables is several transactions, of which the last states its low watermark. So
    it is the first time at which that is stated: later ones may have a part of the next epoch.

    Args:
        low_watermark_us: an epoch's, which may have had no changes: then nothing states it.
        mark_at: returns what was stated at a time.
        oldest_us, now_us: the times between which one can look.

    Returns:
        None if it was before all of these.
    """
    latest = mark_at(now_us)
    if latest.low_watermark_us > low_watermark_us:
        before, at = _change(low_watermark_us, mark_at, oldest_us, latest)
        if before.low_watermark_us >= low_watermark_us:
            return None
        if at.low_watermark_us == low_watermark_us:
            return at.time_us
        latest = before
    is_gone = latest.time_us != now_us
    if not latest.low_watermark_us:
        # No epoch had changes. Those of later ones come after their low watermarks.
        first_us = _first_us(low_watermark_us, oldest_us, latest)
        return None if is_gone and first_us > low_watermark_us else first_us
    before, at = _change(latest.low_watermark_us, mark_at, oldest_us, latest)
    if before.low_watermark_us < latest.low_watermark_us:
        return at.time_us
    return None if is_gone else before.time_us


def _first_us(low_watermark_us: int, oldest_us: int, latest: Mark) -> int:
    """Return a time before a low watermark was stated, or the first at which one can look."""
    return min(max(oldest_us, low_watermark_us - _BEFORE_US), latest.time_us)


def _change(
    low_watermark_us: int, mark_at: Callable[[int], Mark], oldest_us: int, latest: Mark
) -> tuple[Mark, Mark]:
    """Return what was stated before and after the transaction that reached a low watermark.

    Args:
        low_watermark_us, mark_at, oldest_us: see time_of().
        latest: a mark that has reached it.

    Returns:
        The first has reached it, too, if that was before one can look.
    """
    before = mark_at(_first_us(low_watermark_us, oldest_us, latest))
    if before.low_watermark_us >= low_watermark_us:
        return before, latest
    # Fewer, if somebody has removed the row meanwhile.
    while (
        abs(latest.transactions - before.transactions) > 1 and latest.time_us - before.time_us > 1
    ):
        middle = mark_at((before.time_us + latest.time_us) // 2)
        if middle.low_watermark_us < low_watermark_us:
            before = middle
        else:
            latest = middle
    return before, latest


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
