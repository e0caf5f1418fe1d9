"""The epochs of one pipeline in a database: each is a transaction, over all its tables.

The transaction locks the pipeline's row, which names its owner and states the low watermark of all
tables. So a former owner commits nothing more, and an epoch that is there is not written again.
"""

import json
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import ClassVar, Final, Generic, TypeVar

import pyarrow as pa
from pyspark.sql import DataFrame

from slackwater.spark_sink.errors import DatabaseError
from slackwater.spark_sink.output.commit_log import taken_over_error
from slackwater.spark_sink.output.epoch_place import EpochPlace
from slackwater.spark_sink.output.task_rows import RowsForTasks, rows_by_tasks
from slackwater.spark_sink.output.watermark_log import FOLDER
from slackwater.spark_sink.tables.by_transaction.names import TableAddress
from slackwater.spark_sink.tables.by_transaction.sql_database import SqlDatabase
from slackwater.spark_sink.tables.database_access import PIPELINE_PROPERTY, properties_in
from slackwater.timestamp import datetime_to_rfc3339

MARKS: Final = "_slackwater"
CHUNKS: Final = "_slackwater_chunks"

D = TypeVar("D", bound=SqlDatabase)


class TransactionLog(ABC, Generic[D]):
    """The epochs that one process commits to the tables of a pipeline.

    Args:
        database: with the statements of epochs.
        reader: the same database, for those who look at the tables meanwhile, and see no epoch that
            is not committed.
        place: where the epochs are staged.
        pipeline: its name.

    Attributes:
        database, reader, place, pipeline: as given.
        owner: this process, by a name that no other has.
        for_tasks: writes rows of tables for tasks.
        is_open: what is written now belongs to an epoch or chunk that is new. Inside of
            committing().
        locking: what makes a query of the pipeline's row lock it.
        json_type: the database's type of JSON.
        error: that of the database.
    """

    locking: ClassVar[str] = ""
    json_type: ClassVar[str] = "json"
    error: ClassVar[type[DatabaseError]]

    def __init__(self, database: D, reader: D, place: EpochPlace, pipeline: str) -> None:
        self.database = database
        self.reader = reader
        self.place = place
        self.pipeline = pipeline
        self.owner = uuid.uuid4().hex
        self.for_tasks = RowsForTasks(place)
        self.is_open = False
        # The last epoch that this process knows of.
        self._latest: datetime | None = None

    @abstractmethod
    def _claim(self) -> datetime | None:
        """Make the log's tables, state this owner, and return the last epoch's low watermark."""

    @abstractmethod
    def check(self) -> None:
        """Ask whether tables can be made; make none.

        Raises:
            DatabaseError, PublishError: see SqlDatabase.run().
        """

    @abstractmethod
    def _comments(self) -> Iterable[str | None]:
        """Return the comments of tables, those of the pipeline's among them."""

    @abstractmethod
    def comment_of(self, table: TableAddress) -> Sequence[str | None]:
        """Return a table's comment, None for none; nothing without the table."""

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:
        """Let no former owner commit any more; return the last epoch's low watermark.

        Args:
            logged: returns the watermark log's last low watermark; None without one.

        Raises:
            DatabaseError: the database lacks epochs; see also SqlDatabase.run().
            PublishError: see SqlDatabase.run().
        """
        latest = self._claim()
        expected = logged()
        if expected is not None and (latest is None or latest < expected):
            raise self._lacks(expected)
        self._latest = latest
        return latest

    def _lacks(self, epoch: datetime) -> DatabaseError:
        return self.error(
            f"the database does not have the epoch of {datetime_to_rfc3339(epoch)}, which"
            f" {self.place.path} has.",
            "They are of different times: restore both as of one time. What a failover has lost can"
            f" be read again: remove {self.place.path}/{FOLDER}, and start the pipeline, which says"
            " how to go on",
        )

    @contextmanager
    def committing(
        self,
        low_watermark: datetime,
        chunk: int | None,
        *,
        is_stated: bool,  # noqa: ARG002 - it always is
        incomplete: Sequence[str],
    ) -> Iterator[None]:
        """Commit what is written inside, unless the database has the epoch or chunk.

        Args:
            low_watermark: the epoch's, or the scan's.
            chunk: the chunk's number; None for an epoch.
            is_stated: the low watermark is to be stated though there are no rows.
            incomplete: the full names of tables that lack rows.

        Raises:
            DatabaseError, PublishError: see SqlDatabase.run(); or another process has taken the
                pipeline over, and nothing is committed.
        """
        if chunk is None and self._latest is not None and low_watermark <= self._latest:
            # Its low watermark is stated.
            yield
            return
        with self.database.transaction():
            latest = self._locked()
            if latest not in (self._latest, low_watermark):
                # As after a failover, which a connection pooler may hide.
                raise self._lacks(self._latest or low_watermark)
            if chunk is None:
                self.is_open = latest is None or latest < low_watermark
            else:
                self.is_open = self._add_chunk(low_watermark, chunk)
            try:
                yield
                if self.is_open and chunk is None:
                    self._state(low_watermark, incomplete)
            finally:
                self.is_open = False
        if chunk is None:
            self._latest = low_watermark

    @contextmanager
    def altering(self) -> Iterator[None]:
        """Alter tables inside by one transaction, as the pipeline's owner; see committing()."""
        with self.making():
            self._locked()
            yield

    @contextmanager
    def making(self) -> Iterator[None]:
        """Make one transaction of the statements inside, which may make tables."""
        with self.database.transaction(is_alone=True):
            yield

    def _locked(self) -> datetime | None:
        """Lock the pipeline's row, and return the low watermark.

        Raises:
            PublishError: another process has taken the pipeline over.
        """
        marks = self.database.run(
            f"SELECT owner, low_watermark FROM {MARKS} WHERE pipeline = $1{self.locking}",
            self.pipeline,
        )
        if [owner for owner, _ in marks] != [self.owner]:
            raise taken_over_error()
        [(_, latest)] = marks
        low_watermark: datetime | None = latest
        return low_watermark

    def _add_chunk(self, low_watermark: datetime, chunk: int) -> bool:
        """Note a chunk, as who has locked the row; return False if the database has it."""
        values = (self.pipeline, low_watermark, chunk)
        if self.database.run(
            f"SELECT 1 FROM {CHUNKS} WHERE pipeline = $1 AND low_watermark = $2 AND chunk = $3",
            *values,
        ):
            return False
        self.database.run(f"INSERT INTO {CHUNKS} VALUES ($1, $2, $3)", *values)
        return True

    def _state(self, low_watermark: datetime, incomplete: Sequence[str]) -> None:
        self.database.run(
            f"UPDATE {MARKS} SET low_watermark = $1, incomplete = $2::text::{self.json_type}"
            " WHERE pipeline = $3",
            low_watermark,
            json.dumps(incomplete),
            self.pipeline,
        )

    def state_complete(self, source: str | None, low_watermark: datetime) -> None:
        """State that a table lacks no rows at the low watermark, unless there is a later one.

        Args:
            source: the full name of the Spanner table.
            low_watermark: of all tables.
        """
        # Beside neither an epoch nor maintenance.
        with self.making():
            if self._locked() == low_watermark:
                [[incomplete]] = self.database.run(
                    f"SELECT incomplete FROM {MARKS} WHERE pipeline = $1", self.pipeline
                )
                others = [name for name in json.loads(incomplete) if name != source]
                self._state(low_watermark, others)

    def stated(self, source: str | None) -> str | None:
        """Return the low watermark of all tables, in RFC 3339.

        Args:
            source: the full name of the Spanner table that one is asked about.

        Returns:
            None without one, or if that table lacks rows.
        """
        marks = self.reader.run(
            f"SELECT low_watermark, incomplete FROM {MARKS} WHERE pipeline = $1", self.pipeline
        )
        for low_watermark, incomplete in marks:
            if low_watermark is not None and source not in json.loads(incomplete):
                return datetime_to_rfc3339(low_watermark)
        return None

    def written(self, rows: DataFrame) -> Iterator[pa.RecordBatch]:
        """Have tasks write rows, and yield them; see rows_by_tasks()."""
        return rows_by_tasks(rows, self.place, self.owner)

    def own_properties(self) -> list[Mapping[str, str]]:
        """Return the properties of each of the pipeline's tables."""
        properties = map(properties_in, self._comments())
        return [of for of in properties if of.get(PIPELINE_PROPERTY) == self.pipeline]

    def properties_of(self, table: TableAddress) -> Mapping[str, str] | None:
        """Return the properties in a table's comment, none for others' tables; None without it."""
        comments = self.comment_of(table)
        return properties_in(comments[0]) if comments else None
