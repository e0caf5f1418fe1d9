"""The base class of table formats, for changelogs and mirrors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.output.table_commits import TableCommits
    from slackwater.spark_sink.output.table_files import TableFiles
    from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess


class TableFormat(ABC):
    """Tables of one format, each named by its directory.

    A format is one module of this folder with one class, which registry.py lists.

    Args:
        catalog: a catalog of the session and a namespace, as in SQL; None if tables are
            directories.
        storage_options: of the object store with the tables; see open_object_store().

    Attributes:
        using: the format's name in Spark SQL, as in CREATE TABLE ... USING, and in sink.format.
        has_catalogs: its tables can be in a catalog, which the setting sink.catalog names.
        marks_refused: marks that the name of a column must not have.
        names_any_column: a table property, and values of it with which a column may have any name.
        catalog, storage_options: as given.
    """

    using: ClassVar[str]
    has_catalogs: ClassVar[bool] = False
    marks_refused: ClassVar[str] = ""
    names_any_column: ClassVar[tuple[str, Sequence[str]]] = ("", ())

    def __init__(
        self,
        catalog: str | None = None,
        storage_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.catalog = catalog
        self.storage_options = storage_options

    @staticmethod
    @abstractmethod
    def spark_conf(spark_version: str) -> Mapping[str, str]:
        """Return the Spark settings that the format needs, among them its jars.

        Args:
            spark_version: such as 4.1.3.

        Raises:
            UnknownFormatError: the format does not work on this version of Spark.
        """

    @abstractmethod
    def name(self, path: str) -> str:
        """Return a table's quoted name in Spark SQL, in a session with session_settings()."""

    @abstractmethod
    def log(
        self,
        path: str,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> tuple[TableCommits, TableFiles]:
        """Return a table's commits, and its files that no commit names yet.

        Args:
            path: the table's directory or URL.
            application: names the pipeline in commits.
            properties: of a table that is created.
            has_lines: its commits have the watermark log's lines.
        """

    @abstractmethod
    def access(self, spark: SparkSession, path: str, application: str) -> DriverAccess:
        """Return the access to a table.

        Args:
            spark: a session.
            path: the table's directory or URL.
            application: names the pipeline in commits.
        """

    def at_once(self) -> AbstractContextManager[None]:
        """Make all commits inside visible at one moment, if the tables' catalog can.

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
            What Spark SQL takes for VERSION AS OF; None if the table had no rows yet.

        Raises:
            AsOfTimeError: commits of that time, or their files, were removed.
        """

    def session_settings(self, path: str) -> Mapping[str, str]:
        """Return the settings that a session needs to know a table by name(), in their order."""
        del path
        return {}
