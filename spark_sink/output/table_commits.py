"""The log of a table: each commit is made once, and former owners can't add to it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from slackwater.spark_sink.errors import ObjectStoreError, PublishError

_TRIES: Final = 20


@dataclass(frozen=True, slots=True)
class DataFile:
    """A Parquet file that becomes a table's.

    Attributes:
        name: relative to the table.
        size: in bytes.
        partition: the values of the partition columns.
        stats: see stats_text(); None if they are not known.
    """

    name: str
    size: int
    partition: Mapping[str, str | None]
    stats: str | None


class TableCommits(ABC):
    """The commits of one table, as one process adds them.

    Args:
        path: the table's, for messages.
        application: names the pipeline in commits.
        properties: of a table that is created.
        has_lines: commits have lines of the watermark log; see last_line().
    """

    def __init__(
        self,
        path: str,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> None:
        self.path = path
        self.application = application
        self.properties: Mapping[str, str] = dict(properties or {})
        self._has_lines = has_lines
        self._line: str | None = None

    @property
    @abstractmethod
    def is_owner(self) -> bool:
        """Whether there is a table, and this process has taken it over or created it."""

    @property
    def version_properties(self) -> Mapping[str, str]:
        """The properties that name the version for readers of a published low watermark.

        Without them a reader finds it by the commits.
        """
        return {}

    @property
    @abstractmethod
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns. After open()."""

    def take_over(self) -> None:
        """Let no former owner commit any more; a missing table stays missing.

        Raises:
            ObjectStoreError: the table can't be written without Spark.
            PublishError: the store refuses or fails, or another process takes the pipeline over at
                the same time.
        """
        retrying = Retrying(
            retry=retry_if_exception_type(PublishError),
            stop=stop_after_attempt(_TRIES),
            reraise=True,
        )
        retrying(self._load_and_own)

    @abstractmethod
    def _load_and_own(self) -> None:
        """Load the table, if there is one, and commit this process as its owner."""

    @abstractmethod
    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Check the table's columns, and create it if it was missing. After take_over().

        Args:
            schema: the columns that will be written.
            partition_by: the partition columns of a new table.

        Raises:
            ObjectStoreError: the table has other columns, or asks more of its rows.
            PublishError: another process has created it since, or the store fails.
        """

    @abstractmethod
    def refresh(self) -> None:
        """Have the table loaded again: others may have altered it."""

    @abstractmethod
    def property(self, name: str) -> str | None:
        """Return a property of the table; None if it is not set, or the table is missing."""

    @abstractmethod
    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in one commit; a struct that is there gets the fields that it lacks.

        Raises:
            ObjectStoreError, PublishError: see append().
        """

    @abstractmethod
    def set_properties(self, properties: Callable[[], Mapping[str, str]]) -> None:
        """Set properties of the table as it is, in a commit that follows it.

        Args:
            properties: returns them, from property() and last_version() at that time; none for no
                commit.

        Raises:
            ObjectStoreError, PublishError: see append().
        """

    @abstractmethod
    def append(
        self,
        files: Sequence[DataFile],
        application: str,
        version: int,
        line: str | None = None,
    ) -> bool:
        """Add files in one commit, and return False if it has been made before.

        Args:
            files: of one epoch.
            application: names the writer; each application counts its own versions.
            version: rises with each commit of the application.
            line: the epoch's in the watermark log; see last_line().

        Raises:
            PublishError: another process has taken the pipeline over, or the store fails. Then the
                commit may have been made: the next call tells.
        """

    @abstractmethod
    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed. After take_over()."""

    def has_committed(self, application: str, version: int) -> bool:
        """Return whether an application has committed a version or a later one."""
        latest = self.last_version(application)
        return latest is not None and latest >= version

    def last_line(self) -> str | None:
        """Return the watermark log's line that came with the last epoch before this process's.

        Its owner may have died before it added the line to the log. After take_over(). None if no
        commit had one.
        """
        return self._line

    @abstractmethod
    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; in any thread.

        Args:
            keep_s: for how many seconds a version that was replaced can still be read; None for
                ever.

        Raises:
            ObjectStoreError: the driver can't rewrite the table.
            PublishError: other processes commit all the time, or the store fails.
        """


def require_columns(path: str, has: Mapping[str, str], written: Mapping[str, str]) -> None:
    """Require that a table has all columns that are written, with their types.

    Args:
        path: the table's.
        has, written: types by the names of columns.

    Raises:
        ObjectStoreError: it has others.
    """
    if not written.items() <= has.items():
        raise ObjectStoreError(
            f"{path} has the columns {_listed(has, written)};"
            f" this pipeline writes {_listed(written, has)}.",
            "Choose another path, or the envelope that the table was written with",
        )


def _listed(columns: Mapping[str, str], others: Mapping[str, str]) -> str:
    """Return columns in words, with the types of those that have another type elsewhere."""
    differ = {name for name, kind in columns.items() if others.get(name, kind) != kind}
    return ", ".join(f"{name} {columns[name]}" if name in differ else name for name in columns)
