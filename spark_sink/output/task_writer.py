"""Epochs whose files the tasks that read write themselves, from Arrow.

Otherwise each record passes from Python to the JVM, becomes a row of Spark's, and is taken apart
again by Spark's writer, which costs more than reading it. Spark then only hands on the names of a
task's files and its counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output.file_writer import (
    RESULT,
    RESULT_SCHEMA,
    FileWriter,
    WrittenFile,
    written_files,
)
from slackwater.spark_sink.output.parquet_stats import rows_of
from slackwater.spark_sink.output.preparation import DATE_COLUMN, Preparation
from slackwater.spark_sink.sink import EpochSummary
from slackwater.timestamp import us_to_datetime

# The bytes of a message besides the values of its mod: names, types, the transaction.
MESSAGE_OVERHEAD_BYTES: Final = 2_000
# A record without it is a transaction.
_RECORDS_COLUMN: Final = "number_of_records_in_transaction"
# The values of a mod.
_TEXTS: Final = ("keys", "new_values", "old_values")
_COUNTS: Final = "counts"
# The rows that a task hands on: one for each file, and one for its counts.
HANDED_ON: Final = f"{RESULT}, {_COUNTS} string"
_SCHEMA: Final = RESULT_SCHEMA.append(pa.field(_COUNTS, pa.string()))


@dataclass(frozen=True, slots=True)
class TaskWriter:
    """A writer of one task's records as they are read.

    Attributes:
        files: writes the files.
        preparation: which records are written, and what becomes of them.
    """

    files: FileWriter
    preparation: Preparation = field(default_factory=Preparation)

    def to_text(self) -> str:
        """Return a text that from_text() takes, in another process; of a writer of records only."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> TaskWriter:
        """Return the writer of a text."""
        fields = json.loads(text)
        preparation = _with_tuples(fields["preparation"])
        preparation["record_filter"] = RecordFilter(**_with_tuples(preparation["record_filter"]))
        return cls(FileWriter(**_with_tuples(fields["files"])), Preparation(**preparation))

    def write(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write all records, of the contract's columns, and yield the rows of HANDED_ON.

        Raises:
            PublishError: the local disk refuses.
        """
        counter = _Counter(
            message_bytes=0 if self.preparation.has_message_bytes else None,
            distinct={name: [] for name in self.preparation.distinct},
        )
        for result in self.files.write(self._rows(batches, counter)):
            yield result.append_column(_COUNTS, pa.nulls(result.num_rows, pa.string()))
        yield pa.RecordBatch.from_pylist([{_COUNTS: json.dumps(asdict(counter))}], _SCHEMA)

    def _rows(
        self, batches: Iterable[pa.RecordBatch], counter: _Counter
    ) -> Iterator[pa.RecordBatch]:
        records, messages = self._records(batches, counter), self.preparation.messages
        for rows in records if messages is None else messages.of_batches(records):
            counter.rows += rows.num_rows
            yield self._dated(rows)

    def _records(
        self, batches: Iterable[pa.RecordBatch], counter: _Counter
    ) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch.num_rows:
                counter.add(batch)
                records = self.preparation.record_filter.apply_to_batch(batch)
                counter.written += records.num_rows
                if records.num_rows:
                    yield records

    def _dated(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if not self.preparation.has_date:
            return batch
        # Spark gives timestamps in the session's time zone.
        in_utc = batch["commit_timestamp"].cast(pa.timestamp("us", "UTC"))
        return batch.append_column(DATE_COLUMN, in_utc.cast(pa.date32()))


@dataclass(slots=True)
class _Counter:
    """A counter of records before the filter; commit timestamps are in microseconds.

    Attributes:
        written: the records behind the filter.
        rows: what became of those.
    """

    records: int = 0
    written: int = 0
    rows: int = 0
    transactions: float = 0.0
    first_us: int | None = None
    last_us: int | None = None
    message_bytes: int | None = None
    distinct: dict[str, list[str]] = field(default_factory=dict)

    def add(self, batch: pa.RecordBatch) -> None:
        self.records += batch.num_rows
        if _RECORDS_COLUMN in batch.schema.names:
            # Each of a transaction's n records counts as one nth of it.
            self.transactions += pc.sum(pc.divide(1.0, batch[_RECORDS_COLUMN])).as_py() or 0.0
        else:
            self.transactions += batch.num_rows
        bounds = pc.min_max(batch["commit_timestamp"].cast(pa.int64())).as_py()
        self.first_us = _least(self.first_us, bounds["min"])
        self.last_us = _greatest(self.last_us, bounds["max"])
        for name, values in self.distinct.items():
            present = batch[name].unique().drop_null().to_pylist()
            self.distinct[name] = sorted({*values, *present})
        if self.message_bytes is not None:
            self.message_bytes += _message_bytes(batch["mods"].flatten())


def _message_bytes(mods: pa.StructArray) -> int:
    """Return an estimate of the bytes that the messages of mods take; see HandedOn."""
    texts = (pc.sum(pc.binary_length(mods.field(name))).as_py() or 0 for name in _TEXTS)
    return sum(texts, len(mods) * MESSAGE_OVERHEAD_BYTES)


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass with tuples where JSON has lists."""
    return {
        name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
    }


def _least(*times_us: int | None) -> int | None:
    return min((time for time in times_us if time is not None), default=None)


def _greatest(*times_us: int | None) -> int | None:
    return max((time for time in times_us if time is not None), default=None)


@dataclass(frozen=True, slots=True)
class HandedOn:
    """The counts and files that an epoch's tasks have handed on.

    Attributes:
        summary: of the records.
        distinct: by column, the values in the records before the filter.
        message_bytes: an estimate of the bytes of the records' messages, before the filter; None if
            it was not asked for.
        files: with what became of the records.
    """

    summary: EpochSummary
    distinct: Mapping[str, frozenset[str]]
    message_bytes: int | None
    files: Sequence[WrittenFile]


def _require_rows(files: Sequence[WrittenFile], written: int) -> None:
    """Compare the rows that the footers of Parquet files state with those written."""
    stated = [rows_of(file.stats) for file in files if file.stats is not None]
    if len(stated) == len(files) and sum(stated) != written:
        raise PublishError(
            f"the files of an epoch have {sum(stated)} of the {written} rows that tasks wrote.",
            "The epoch is read again",
        )


def is_handed_on(epoch: DataFrame) -> bool:
    """Return whether an epoch's rows are those that tasks hand on, and not its records."""
    return list(epoch.columns) == list(_SCHEMA.names)


def handed_on(epoch: DataFrame, writer: TaskWriter) -> HandedOn:
    """Run an epoch's tasks, and return the counts and files that they hand on.

    Args:
        epoch: its records, or rows for which is_handed_on().
        writer: by which tasks write records.

    Raises:
        PublishError: the files' own counts are not those of the tasks.
    """
    if not is_handed_on(epoch):
        epoch = map_in_arrow(epoch, writer.write, HANDED_ON)
    rows = epoch.toArrow()
    is_count = pc.is_valid(rows[_COUNTS])
    files = written_files(rows.filter(pc.invert(is_count)).drop_columns([_COUNTS]))
    counters = [_Counter(**json.loads(text)) for text in rows[_COUNTS].drop_null().to_pylist()]
    _require_rows(files, sum(counter.rows for counter in counters))
    first_us = _least(*(counter.first_us for counter in counters))
    last_us = _greatest(*(counter.last_us for counter in counters))
    summary = EpochSummary(
        records=sum(counter.records for counter in counters),
        written=sum(counter.written for counter in counters),
        transactions=round(sum(counter.transactions for counter in counters)),
        commit_timestamp_min=None if first_us is None else us_to_datetime(first_us),
        commit_timestamp_max=None if last_us is None else us_to_datetime(last_us),
    )
    distinct = {
        name: frozenset(value for counter in counters for value in counter.distinct[name])
        for name in (counters[0].distinct if counters else ())
    }
    sizes = [counter.message_bytes for counter in counters if counter.message_bytes is not None]
    return HandedOn(summary, distinct, sum(sizes) if sizes else None, files)
