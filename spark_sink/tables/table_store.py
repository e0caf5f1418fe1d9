"""Where changelogs and mirrors keep their tables: in files of a format, or in a database."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from slackwater.spark_sink.sql.quoting import identifier

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.tables.table_access import TableAccess


class TableStore(ABC):
    """The tables of one output, each named by its directory or URL.

    Attributes:
        using: its name in sink.format, and that of a format in Spark SQL, as in CREATE TABLE ...
            USING.
        beginnings_refused: with which the name of a column must not begin, in upper case.
        marks_refused: marks that the name of a column must not have.
        names_any_column: a table property, and values of it with which a column may have any name.
        has_nulls_in_arrays: an array, or one of its values, may be NULL. Otherwise a NULL array has
            no values, and NULL is left out of the others.
        version_clause: what stands in SQL behind the name of a table, for a version {}.
        view_statement: the beginning of a statement that gives what a query returns a name.
        name_max: how many characters the name of a column can have; None for any number.
        has_one_log: an epoch is one commit for all tables, which state one low watermark.
        is_one_commit: take_over() returns that of an epoch of which all is visible.
        root: the URL of all tables; None if they are beside their staged epochs.
    """

    using: ClassVar[str]
    beginnings_refused: ClassVar[Sequence[str]] = ()
    marks_refused: ClassVar[str] = ""
    names_any_column: ClassVar[tuple[str, Sequence[str]]] = ("", ())
    has_nulls_in_arrays: ClassVar[bool] = True
    has_one_log: ClassVar[bool] = False
    is_one_commit: ClassVar[bool] = False
    version_clause: ClassVar[str] = "VERSION AS OF {}"
    view_statement: ClassVar[str] = "CREATE OR REPLACE TEMPORARY VIEW"
    name_max: int | None = None
    root: str | None = None

    def holds(self, stored: str, wanted: str) -> bool:
        """Return whether a column of one type in Spark SQL is as the tables have another one."""
        return stored == wanted

    def quoted(self, name: str) -> str:
        """Return a name as the SQL has it that reads the tables."""
        return identifier(name)

    def takes_column(self, name: str) -> bool:
        """Return whether a column can have a name."""
        begins = name.upper().startswith(tuple(self.beginnings_refused))
        return not begins and not any(mark in self.marks_refused for mark in name)

    @abstractmethod
    def name(self, path: str) -> str:
        """Return a table's quoted name in Spark SQL, in a session with session_settings()."""

    @abstractmethod
    def access(self, spark: SparkSession, path: str, application: str) -> TableAccess:
        """Return the access to a table.

        Args:
            spark: a session.
            path: the table's directory or URL.
            application: names the pipeline in commits.
        """

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:  # noqa: ARG002
        """Fence former owners of all tables, if they have one log.

        Args:
            logged: returns the watermark log's last low watermark; None without one.

        Returns:
            The last epoch's low watermark in that log; None without an epoch or such a log.

        Raises:
            SinkError, PublishError: the tables are not as the log says, or their store fails.
        """
        return None

    def at_once(
        self,
        low_watermark: datetime,  # noqa: ARG002
        *,
        chunk: int | None = None,  # noqa: ARG002
        is_stated: bool = False,  # noqa: ARG002
        incomplete: Collection[str] = (),  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Make all commits inside visible at one moment, if the tables can.

        Args:
            low_watermark: of the epoch or the initial scan that they are of.
            chunk: the chunk's number in the scan; None for an epoch.
            is_stated: tables that state one low watermark have to, without a change, too.
            incomplete: the full names of tables that lack rows.

        Raises:
            ObjectStoreError, PublishError: at the end; see TableCommits.append().
        """
        return nullcontext()

    @abstractmethod
    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists and has its first commit."""

    @abstractmethod
    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """Return the names of the catalog's tables; None if tables are directories."""

    @abstractmethod
    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:
        """Return the properties of a table whose old versions are removed.

        Args:
            keep_s: see TableCommits.maintain().
        """

    @abstractmethod
    def read(self, spark: SparkSession, path: str, within: RowRange | None = None) -> DataFrame:
        """Read a table as it is now.

        Args:
            spark: a session.
            path: the table's directory or URL.
            within: rows that are not in this range may be left out; None for no range.
        """

    @abstractmethod
    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read a table at its published low watermark, and return both; None without one."""

    def stated(self, spark: SparkSession, path: str) -> str | None:
        """Return the low watermark that a table has published; None without one."""
        state = self.read_at_watermark(spark, path)
        return None if state is None else state[1]

    @abstractmethod
    def version_at(
        self, spark: SparkSession, path: str, application: str, low_watermark: datetime
    ) -> int | None:
        """Return the version of a table with all epochs up to a low watermark, and none after it.

        Args:
            spark: a session with the format's jar.
            path: the table's directory.
            application: of the merges.
            low_watermark: that of an epoch that is complete in all tables, or of the initial scan.

        Returns:
            What goes into the version clause; None if the table had no rows yet.

        Raises:
            AsOfTimeError: commits of that time, or their files, were removed.
        """

    def session_settings(self, path: str) -> Mapping[str, str]:
        """Return the settings that a session needs to know a table by name(), in their order."""
        del path
        return {}
