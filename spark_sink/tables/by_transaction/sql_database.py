"""A database that takes SQL: its statements, and transactions of several of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import RLock
from typing import Any, ClassVar, Final

import pyarrow as pa

from slackwater.spark_sink.errors import DatabaseError, PublishError


class SqlDatabase(ABC):
    """A database, by one connection, which is opened when it is needed, and again after a failure.

    Several threads may use it; a transaction is of all of them.

    Attributes:
        snapshot_begin: the statement that begins a transaction whose queries see one moment.
    """

    snapshot_begin: ClassVar[str] = "BEGIN"

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._is_begun = False

    @abstractmethod
    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows.

        Args:
            statement: its SQL, with $1 for the first value.
            values: texts, numbers, times in UTC, or lists of them.

        Raises:
            DatabaseError: the database refuses.
            PublishError: it fails or does not answer.
        """

    @abstractmethod
    def batches(self, query: str, *values: Any) -> AbstractContextManager[pa.RecordBatchReader]:
        """Provide the rows of a query, as they come; see run()."""

    @property
    @abstractmethod
    def is_open(self) -> bool:
        """Whether there is a connection."""

    @contextmanager
    def transaction(self, *, is_alone: bool = False) -> Iterator[None]:
        """Make one transaction of the statements inside, unless there is an error.

        Args:
            is_alone: other threads wait; otherwise their statements are in it, too.

        Raises:
            DatabaseError, PublishError: see run(). If the answer to the commit is lost, all of it
                is done, or nothing.
        """
        with self._lock if is_alone else nullcontext(), self._begun("BEGIN"):
            yield
            self.run("COMMIT")
            self._is_begun = False

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Have all queries inside see one moment. No other thread may read meanwhile."""
        with self._lock, self._begun(self.snapshot_begin):
            yield

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Make a transaction of the statements inside, and undo it."""
        with self._begun("BEGIN"):
            yield

    @contextmanager
    def _begun(self, statement: str) -> Iterator[None]:
        """Begin a transaction, and roll back at the end what is not committed."""
        assert not self._is_begun, statement  # noqa: S101 - the inner one would commit the outer
        self.run(statement)
        self._is_begun = True
        try:
            yield
        finally:
            if self._is_begun and self.is_open:
                with suppress(DatabaseError, PublishError):
                    self.run("ROLLBACK")
            self._is_begun = False


def as_they_come(reader: pa.RecordBatchReader, database: str) -> Iterator[pa.RecordBatch]:
    """Yield rows of a query; the driver's errors are not its own here.

    Args:
        reader: the rows.
        database: the kind of database, for the message.

    Raises:
        PublishError: they end in the middle.
    """
    try:
        yield from reader
    except (OSError, pa.ArrowException) as error:
        raise PublishError(f"{database}: {' '.join(str(error).split())}.") from error


def one(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the only value of the only row."""
    [[value]] = rows
    return value
