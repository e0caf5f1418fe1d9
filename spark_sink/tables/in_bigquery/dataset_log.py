"""The log of all tables of one pipeline in a dataset: each commit is an epoch, for all of them.

It is a log of files, in the place where epochs are staged. What a commit shows are the rows of
buffered streams. Those of a mirror's are then merged by one transaction for all mirrors, which also
moves the low watermark; those of typed changelogs are the tables' own, and the low watermark is a
row that is shown last. Mirrors that are consistent each by itself have their changes before the
commit, which has that row alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from multiprocessing.pool import ThreadPool
from typing import Final

import pyarrow as pa
from google.cloud import bigquery
from pyspark.sql import DataFrame

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.bigquery.dataset import Dataset, require_usable
from slackwater.spark_sink.output.bigquery.row_stream import Extent
from slackwater.spark_sink.output.bigquery.schema import stored_batches
from slackwater.spark_sink.output.bigquery.shown_rows import ShownChange, ShownRows
from slackwater.spark_sink.output.bigquery.upsert_stream import SEQUENCE_NUMBER
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.epoch_names import epoch_name, parse_epoch_name
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form
from slackwater.spark_sink.output.file_log import FileLog
from slackwater.spark_sink.output.file_writer import WrittenFile
from slackwater.spark_sink.output.task_rows import RowsForTasks, rows_by_tasks
from slackwater.spark_sink.tables.database_access import PIPELINE_PROPERTY, properties_in
from slackwater.spark_sink.tables.in_bigquery.changelog_views import MARKS
from slackwater.spark_sink.tables.in_bigquery.marks import Marks
from slackwater.spark_sink.tables.in_bigquery.merge import (
    TableMerge,
    in_transactions,
    transaction,
)
from slackwater.spark_sink.tables.in_bigquery.mirroring import Mirroring
from slackwater.timestamp import datetime_to_rfc3339, datetime_to_us

# Beside PIPELINE_PROPERTY.
CONSISTENCY_PROPERTY: Final = "slackwater.consistency"
_LOOKS_AT_ONCE: Final = 8
_US: Final = timedelta(microseconds=1)
# A commit that waits so long may have lost its rows: BigQuery removes them after days.
_LATE_US: Final = 24 * 3_600 * 1_000_000


@dataclass(slots=True)
class _Collected:
    """The rows of one commit that were appended, and the merges of them.

    Attributes:
        low_watermark: the commit's.
        chunk: the chunk's number in an initial scan; None for an epoch.
        is_new: the log does not have it.
        incomplete: the full names of tables that lack rows then.
        has_upserts: rows were changed that no commit has to show.
    """

    low_watermark: datetime
    chunk: int | None
    is_new: bool
    incomplete: Sequence[str]
    has_upserts: bool = False
    extents: list[Extent] = field(default_factory=list)
    merges: list[TableMerge] = field(default_factory=list)


class DatasetLog(ShownRows):
    """The commits to the tables of a dataset, as one process makes them.

    Args:
        dataset: the tables'.
        place: where the epochs are staged, and the log is.
        pipeline: its name.
        mirroring: see BigQuery.

    Attributes:
        marks: the low watermarks.
        for_tasks: writes rows of tables for tasks.
    """

    def __init__(
        self, dataset: Dataset, place: EpochPlace, pipeline: str, mirroring: Mirroring | None
    ) -> None:
        super().__init__(dataset, place)
        self.dataset = dataset
        self.pipeline = pipeline
        self.are_merged = mirroring is not None
        self._consistency = None if mirroring is None else mirroring.consistency
        self._has_transactions = self._consistency == "transaction"
        self._log = FileLog(place, Form(PARQUET, PARQUET), self)
        self._collected: _Collected | None = None
        self.marks = Marks(dataset, pipeline, has_transactions=self._has_transactions)
        self.for_tasks = RowsForTasks(place)

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:
        """Let no former owner commit any more; return the last epoch's low watermark.

        Args:
            logged: see FileLog.

        Raises:
            BigQueryError, ObjectStoreError, PublishError: see FileLog.take_over().
        """
        self.marks.make()
        latest = self._log.take_over(logged).low_watermark
        self._require_chunks()
        if latest is not None and self.first_after(epoch_name(latest - _US)) is None:
            raise BigQueryError(
                f"{self.dataset.id} does not have the epoch of {datetime_to_rfc3339(latest)}, the"
                f" last one in {self._place.path}/_commits.",
                "They are of different times, or tables were removed: restore both as of one time",
            )
        return latest

    def _require_chunks(self) -> None:
        """Refuse mirrors with rows of a scan that the log does not know, as if it were lost.

        Raises:
            BigQueryError: there are some.
        """
        if self.marks.chunks() and not self._chunks.names():
            raise BigQueryError(
                f"{self.dataset.id} has rows of an initial scan that {self._place.path} does not"
                " know.",
                "Name another dataset, or remove the tables of this one",
            )

    def written(self, rows: DataFrame) -> Iterator[pa.RecordBatch]:
        """Have tasks write rows, and yield them; see rows_by_tasks()."""
        return rows_by_tasks(rows, self._place, self._log.owner)

    @contextmanager
    def committing(
        self,
        low_watermark: datetime,
        chunk: int | None,
        *,
        is_stated: bool,
        incomplete: Sequence[str],
    ) -> Iterator[None]:
        """Commit the rows that are added inside, unless the log has the epoch or chunk.

        Args:
            low_watermark: the epoch's, or the scan's.
            chunk: the chunk's number; None for an epoch.
            is_stated: the low watermark is to be stated though there are no rows.
            incomplete: the full names of tables that lack rows.

        Raises:
            BigQueryError, ObjectStoreError, PublishError: see FileLog.publish().
        """
        owner = self._log.owner
        is_new = not self._log.is_published(low_watermark, chunk)
        collected = self._collected = _Collected(low_watermark, chunk, is_new, incomplete)
        try:
            yield
            has_changes = collected.extents or collected.merges or collected.has_upserts
            if is_new and (has_changes or is_stated):
                self._log.publish([], low_watermark, owner=owner, chunk=chunk)
                self.marks.add()
        finally:
            self._collected = None

    @property
    def is_open(self) -> bool:
        """Whether what is added now is to be committed. Inside of committing()."""
        return self._current.is_new

    def append(self, table: str, rows: Iterable[pa.RecordBatch]) -> None:
        """Append rows to a table, for the commit that is being made; there may be none."""
        batches = stored_batches(rows)
        first = next(batches, None)
        if first is not None:
            extent = self.dataset.stream(table).append(chain([first], batches))
            self._current.extents.append(extent)

    def merge(self, merge: TableMerge) -> None:
        """Add a merge of rows that were appended to the commit that is being made."""
        self._current.merges.append(merge)

    def upsert(self, table: str, changes: pa.Table) -> None:
        """Change rows of a mirror by their keys, for the commit that is being made.

        Args:
            table: its name.
            changes: rows with the column CHANGE_TYPE; of a deleted one the key is enough.
        """
        number = pa.scalar(f"{datetime_to_us(self._current.low_watermark):X}")
        rows = changes.append_column(SEQUENCE_NUMBER, pa.repeat(number, changes.num_rows))
        self._current.has_upserts = True
        self.dataset.upserts(table).append(stored_batches(rows.combine_chunks().to_batches()))

    @property
    def _current(self) -> _Collected:
        assert self._collected is not None  # noqa: S101 - rows are added inside of committing()
        return self._collected

    def gather(
        self,
        owner: str,  # noqa: ARG002
        kind: str,  # noqa: ARG002
        written: Sequence[WrittenFile],  # noqa: ARG002
        name: str,
        form: Form,  # noqa: ARG002
    ) -> list[CommittedFile]:
        """Return the commit of what was added; see Shown."""
        current = self._current
        last = None
        is_chunk = current.chunk is not None
        # Rows of a typed changelog's scan tell that they are.
        if not self._has_transactions and (self.are_merged or not is_chunk):
            at, chunk = (None, name) if is_chunk else (current.low_watermark, None)
            row = self.marks.row(at, chunk, current.incomplete)
            last = self.dataset.stream(MARKS).append(row)
        merges = [asdict(merge) for merge in current.merges]
        change = ShownChange(current.extents, last, merges, current.incomplete)
        return [CommittedFile(name, content=change.to_bytes())]

    def _finish(self, change: ShownChange, name: str) -> None:
        """Merge rows that are shown into mirrors, and move the low watermark; see ShownRows.

        More tables than a transaction takes are merged by several, of which the last moves it.
        """
        if not self._has_transactions:
            return
        is_chunk = parse_epoch_name(name) is None
        steps = in_transactions([TableMerge.from_json(merge) for merge in change.merges])
        for number, step in enumerate(steps, 1):
            text = transaction(
                step,
                self.marks.id,
                self.pipeline,
                _time_us(name),
                # Each inserts other rows.
                chunk=f"{name}/{number}" if is_chunk else None,
                moved=change.incomplete if number == len(steps) else None,
                is_late=any(map(_is_late, step)),
            )
            self.dataset.run(text, "a transaction", MARKS)

    def first_after(self, name: str | None) -> str | None:
        """Return an epoch after another one; see Shown.

        Rows of a typed changelog's may be shown and their low watermark not be stated yet. Their
        commit timestamps are later, too: so only the last partitions are read.
        """
        tables = [MARKS] if self.are_merged else [MARKS, *self.own_tables()]
        for table in tables:
            condition = self._of_epochs(table)
            if name is not None and table != MARKS:
                condition += f" AND commit_timestamp > TIMESTAMP_MICROS({_time_us(name)})"
            text = f"SELECT MAX(low_watermark) FROM `{self.dataset.address(table).id}`"
            last = self._one(table, f"{text} WHERE {condition}")
            if last is not None and (name is None or epoch_name(last) > name):
                return epoch_name(last)
        return None

    def _has_rows(self, table: str, name: str) -> bool:
        if self.are_merged:
            table = MARKS
        order = ">=" if table == MARKS else "="
        text = (
            f"SELECT MAX(low_watermark) FROM `{self.dataset.address(table).id}`"
            f" WHERE low_watermark {order} TIMESTAMP_MICROS({_time_us(name)})"
            f" AND {self._of_epochs(table, is_chunk=parse_epoch_name(name) is None)}"
        )
        return self._one(table, text) is not None

    def _of_epochs(self, table: str, *, is_chunk: bool = False) -> str:
        """Return the condition on rows of a table that are of this pipeline's epochs, or chunks."""
        if table == MARKS:
            return "pipeline = @pipeline"
        # Rows of a scan belong to no transaction.
        return f"server_transaction_id {'=' if is_chunk else '!='} ''"

    def _one(self, table: str, text: str) -> datetime | None:
        values = {"pipeline": self.pipeline} if table == MARKS else {}
        [[value]] = self.dataset.run(text, "a query", table, **values)
        time: datetime | None = value
        return time

    def own_properties(self) -> list[Mapping[str, str]]:
        """Return the properties of each of the pipeline's tables.

        Raises:
            BigQueryError: see require_usable().
        """
        own = self.own_tables().values()
        for table in own:
            self.require_usable(table)
        return [properties_of(table) for table in own]

    def own_tables(self) -> dict[str, bigquery.Table]:
        """Return the tables of this pipeline by their names, as they are."""
        tables = self._tables()
        return {name: table for name, table in tables.items() if owner_of(table) == self.pipeline}

    def _tables(self) -> dict[str, bigquery.Table]:
        names = [name for name in self.dataset.names() if not name.startswith("_")]
        with ThreadPool(_LOOKS_AT_ONCE) as pool:
            tables = zip(names, pool.map(self.dataset.table, names), strict=True)
            return {name: table for name, table in tables if table is not None}

    def check(self) -> None:
        """Ask whether tables can be made, and whether those that a pipeline made can be used.

        Raises:
            BigQueryError, PublishError: see Dataset.check() and require_usable().
        """
        self.dataset.check()
        for table in self._tables().values():
            if owner_of(table) is not None:
                self.require_usable(table)

    def require_usable(self, table: bigquery.Table) -> None:
        """Require that a table can be written to by this log.

        Raises:
            BigQueryError: see dataset.require_usable(); or it is this pipeline's, and was made with
                another consistency.
        """
        require_usable(table, is_merged=self._has_transactions)
        made_for = properties_of(table).get(CONSISTENCY_PROPERTY)
        if owner_of(table) == self.pipeline and made_for != self._consistency:
            raise BigQueryError(
                f"{self.dataset.id}.{table.table_id} was made with consistency: {made_for}.",
                f"Set sink.consistency to {made_for}, or name another dataset",
            )

    def properties(self) -> Mapping[str, str]:
        """Return what tables state of who made them."""
        made_for = {} if self._consistency is None else {CONSISTENCY_PROPERTY: self._consistency}
        return {PIPELINE_PROPERTY: self.pipeline, **made_for}


def _is_late(merge: TableMerge) -> bool:
    age_us = datetime_to_us(datetime.now(UTC)) - (merge.staged.at_us if merge.staged else 0)
    return merge.staged is not None and age_us > _LATE_US


def owner_of(table: bigquery.Table) -> str | None:
    """Return the pipeline that made a table; None for a table of others."""
    return properties_of(table).get(PIPELINE_PROPERTY)


def properties_of(table: bigquery.Table) -> Mapping[str, str]:
    """Return the properties in a table's description; none for a table of others."""
    return properties_in(table.description)


def _time_us(name: str) -> int:
    """Return the low watermark in the name of an epoch, or of a scan's chunk."""
    time = parse_epoch_name(name) or parse_epoch_name(name.rpartition(".")[0])
    assert time is not None, name  # noqa: S101 - this process or one before it gave it
    return datetime_to_us(time)
