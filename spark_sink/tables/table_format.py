"""The base class of table formats: what changelogs and mirrors need of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.timestamp import datetime_to_ns, datetime_to_us, parse_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.sql.columns import Column

LOW_WATERMARK_PROPERTY: Final = "slackwater.low_watermark"


@dataclass(frozen=True, slots=True)
class MergeId:
    """Identifies a merge into a table, so that repeating it changes nothing.

    Attributes:
        application: names the writer.
        low_watermark: the epoch's.
    """

    application: str
    low_watermark: datetime

    @property
    def version(self) -> int:
        """The low watermark in microseconds, as transaction identifiers have it."""
        return datetime_to_us(self.low_watermark)

    def is_before(self, version: int | None) -> bool:
        """Return whether a later epoch than this one has the version; None is that of none."""
        return version is not None and version > self.version

    def may_be_published(self, published: str | None, merged: int | None) -> bool:
        """Return whether a table is to state the low watermark.

        Args:
            published: the one that it states; None for none.
            merged: the version of the last merge into it; None without one.
        """
        if published is not None and parse_rfc3339(published) >= datetime_to_ns(self.low_watermark):
            return False
        return not self.is_before(merged)


@dataclass(frozen=True, slots=True)
class OtherRows:
    """What becomes of rows that are deleted, and of those that an epoch does not change.

    Attributes:
        are_kept: a deleted row stays with its last values, and is marked as deleted.
        cleared_at: rows that the epoch does not change are deleted, as of this time: they are those
            of a former table. None if they stay.
    """

    are_kept: bool
    cleared_at: datetime | None = None


class TableFormat(ABC):
    """Tables of one format, each named by its directory.

    A format is one module of this folder with one class; registry.py finds it by its name.

    Attributes:
        using: the format's name in Spark SQL, as in CREATE TABLE ... USING, and in sink.format.
        has_catalogs: its tables can be in a catalog, which the setting sink.catalog names.
        marks_refused: marks that the name of a column must not have.
        names_any_column: a table property, and values of it with which a column may have any name.
        is_by_driver: Spark neither writes mirrors nor reads them: tasks and the driver do.
        storage_options: of the object store with the tables; see open_object_store().
    """

    using: ClassVar[str]
    has_catalogs: ClassVar[bool] = False
    marks_refused: ClassVar[str] = ""
    names_any_column: ClassVar[tuple[str, Sequence[str]]] = ("", ())
    is_by_driver: ClassVar[bool] = False
    storage_options: Mapping[str, str] = MappingProxyType({})

    @classmethod
    @abstractmethod
    def from_settings(cls, catalog: str | None) -> TableFormat:
        """Return the format for one sink.

        Args:
            catalog: a catalog of the session and a namespace, as in SQL; None if tables are
                directories.
        """

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
    def name(self, spark: SparkSession, path: str) -> str:
        """Return the table's quoted name in Spark SQL."""

    @abstractmethod
    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists and has its first commit."""

    @abstractmethod
    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """Return the names of the catalog's tables; None if tables are directories."""

    @abstractmethod
    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:
        """Return the properties of a table whose old versions maintain() removes.

        Args:
            keep_s: as for maintain().
        """

    @abstractmethod
    def maintain(
        self, spark: SparkSession, path: str, application: str, keep_s: float | None
    ) -> None:
        """Rewrite many small files as few large ones, and remove old versions, if there is a table.

        Epochs may be committed meanwhile, by any process.

        Args:
            spark: the session. What is written is written with another one: settings of this one
                name the epoch that is merged meanwhile.
            path: the table's directory.
            application: what it has committed last stays known.
            keep_s: for how many seconds a version that was replaced can still be read; None for
                ever.

        Raises:
            PublishError: two processes committed at the same time.
        """

    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> AbstractContextManager[None]:
        """Make a MERGE of Spark's inside change nothing if it is repeated for a low watermark.

        The table remembers the low watermark.
        """
        del spark, application, low_watermark
        return nullcontext()

    def merges_rows(self, spark: SparkSession, path: str) -> bool:
        """Return whether merge_rows() may merge into tables at a path or below it."""
        del spark, path
        return False

    def merge_rows(
        self,
        spark: SparkSession,
        path: str,
        rows: pa.Table,
        columns: Sequence[Column],
        merge_id: MergeId,
        *,
        keeps_deleted: bool,
    ) -> bool:
        """Merge a few rows in one commit without a job of Spark's.

        It changes nothing if the table has the merge's low watermark or a later one, as
        idempotent_merge() does.

        Args:
            spark: the session.
            path: the table's directory.
            rows: as latest_rows() makes them.
            columns: the columns of the rows, which the table has.
            merge_id: identifies the merge.
            keeps_deleted: a deleted row stays with its last values, and is marked as deleted.

        Returns:
            False if Spark has to merge them; the table is as it was, or has them.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        del spark, path, rows, columns, merge_id, keeps_deleted
        return False

    @abstractmethod
    def merge(
        self,
        spark: SparkSession,
        path: str,
        latest: DataFrame,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Apply an epoch's changes of a mirror in one commit, inside idempotent_merge().

        Args:
            spark: the session.
            path: the table's directory.
            latest: the rows of latest_changes().
            columns: the columns of their rows, which the table has.
            merge_id: identifies the merge.
            others: what becomes of other rows.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """

    @abstractmethod
    def forget(
        self,
        spark: SparkSession,
        path: str,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Drop what a former table or former columns left; arguments as for merge()."""

    @abstractmethod
    def read(self, spark: SparkSession, path: str) -> DataFrame:
        """Read a table as it is now; also what was committed without Spark."""

    @abstractmethod
    def publish_watermark(self, spark: SparkSession, path: str, merge_id: MergeId) -> None:
        """Write to a table's properties up to when it has all changes, in RFC 3339.

        Nothing is written if the table states a later low watermark, or has merged a later epoch:
        a former owner that wakes up takes nothing back, and states nothing that is not so.

        Args:
            spark: the session.
            path: the table's directory.
            merge_id: of the epoch up to which it is complete.

        Raises:
            PublishError: two processes committed at the same time.
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
            application: that of the MERGEs inside idempotent_merge().
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
