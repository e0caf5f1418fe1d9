"""A database that takes SQL: its statements, and transactions of several of them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import RLock
from typing import Any, ClassVar, Final

import pyarrow as pa

from slackwater.spark_sink.errors import DatabaseError, PublishError


class SqlDatabase(ABC):
    """A database, by one connection, which is opened when it is needed, and again after a failure.

    Several threads may use it; a transaction is of all of them.

    Attributes:
        kind: the name of such databases, for messages.
        snapshot_begin: the statement that begins a transaction whose queries see one moment.
    """

    kind: ClassVar[str]
    snapshot_begin: ClassVar[str] = "BEGIN"

    def __init__(self) -> None:
        self._lock: Final = RLock()
        self._is_begun = False
        # The driver's.
        self._connection: Any = None

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

    @abstractmethod
    def _connect(self) -> Any:
        """Return a new connection of the driver's."""

    @abstractmethod
    def _driver_error(self) -> type[Exception]:
        """Return the root of the driver's errors, which is imported when there is one."""

    @abstractmethod
    def _translated(self, error: Any) -> DatabaseError | PublishError:
        """Return an error of the driver's as ours, after close() if the connection may be lost."""

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None

    @contextmanager
    def _connected(self, connect: Callable[[], Any] | None = None) -> Iterator[Any]:
        """Provide the connection, and turn errors inside into ours.

        Args:
            connect: opens it, if it is not to be as _connect() does.
        """
        with self._lock:
            if self._connection is None and self._is_begun:
                # Another one would commit each statement by itself.
                raise PublishError(f"{self.kind}: the transaction's connection was lost.")
            try:
                if self._connection is None:
                    self._connection = (connect or self._connect)()
                yield self._connection
            except PublishError:
                self.close()
                raise
            except self._driver_error() as error:
                raise self._translated(error) from error

    def close(self) -> None:
        """Close the connection; the next statement opens another one."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _as_they_come(self, reader: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return the rows of a query; that they end in the middle is no error of the driver's."""

        def rows() -> Iterator[pa.RecordBatch]:
            try:
                yield from reader
            except (OSError, pa.ArrowException) as error:
                raise PublishError(f"{self.kind}: {' '.join(str(error).split())}.") from error

        return pa.RecordBatchReader.from_batches(reader.schema, rows())

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


def one(rows: Sequence[tuple[Any, ...]]) -> Any:
    """Return the only value of the only row."""
    [[value]] = rows
    return value
