"""Iceberg tables: an epoch is one snapshot, made once, by the driver and tasks.

A snapshot's summary has the application that wrote it and its version, the low watermark. A version
that the table has is not written again.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Final

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from slackwater.spark_sink.errors import AsOfTimeError, PublishError, UnknownFormatError
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.table_changes import LOW_WATERMARK_PROPERTY
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.spark_sink.tables.table_history import version_at
from slackwater.timestamp import datetime_to_us

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
    from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles
    from slackwater.spark_sink.output.iceberg.pending_commits import CommitsAtOnce
    from slackwater.spark_sink.output.iceberg.table_place import TablePlace
    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess

_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
_PACKAGES: Final = {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}
# A catalog such as Nessie shows the current snapshot alone, which is published a moment later.
_PUBLISHED_S_MAX: Final = 60
# By which a catalog removes metadata files, since it compares and swaps the current one.
_METADATA_PROPERTIES: Final[Mapping[str, str]] = {
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "100",
}


class Iceberg(TableFormat):
    """The table format Apache Iceberg."""

    using = "iceberg"
    has_catalogs = True

    @staticmethod
    def spark_conf(spark_version: str) -> dict[str, str]:
        """Return the Spark settings for Iceberg; the jar comes from Maven at the first start.

        Args:
            spark_version: such as 4.1.3.

        Raises:
            UnknownFormatError: there is no Iceberg for this version of Spark.
        """
        package = _PACKAGES.get(".".join(spark_version.split(".")[:2]))
        if package is None:
            raise UnknownFormatError(
                f"there is no Iceberg for Spark {spark_version} yet.",
                f"Use Spark {' or '.join(_PACKAGES)}, or another format",
            )
        return {
            "spark.jars.packages": package,
            "spark.sql.extensions": (
                "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
            ),
        }

    def name(self, path: str) -> str:
        """Return a table's quoted name in Spark SQL; see TableFormat."""
        table = identifier(posixpath.basename(path))
        if self.catalog is not None:
            return f"{self.catalog}.{table}"
        return f"{_file_catalog(path)}.{table}"

    def session_settings(self, path: str) -> Mapping[str, str]:
        """Return the settings of the table's catalog of files; see TableFormat."""
        if self.catalog is not None:
            return {}
        key = f"spark.sql.catalog.{_file_catalog(path)}"
        # Once the last of them is set, the catalog exists.
        warehouse = posixpath.dirname(path) or "."
        return {f"{key}.type": "hadoop", f"{key}.warehouse": warehouse, key: _CATALOG}

    def place(self, path: str) -> TablePlace:
        """Return the place of a table."""
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.iceberg.table_place import TablePlace

        return TablePlace(path, self.catalog, self.storage_options)

    def log(
        self,
        path: str,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> tuple[IcebergCommits, IcebergFiles]:
        """Return a table's commits and files; see TableFormat."""
        from slackwater.spark_sink.output.iceberg.iceberg_commits import IcebergCommits
        from slackwater.spark_sink.output.iceberg.iceberg_files import IcebergFiles

        commits = IcebergCommits(
            self.place(path), application, properties, has_lines=has_lines, at_once=self._at_once
        )
        return commits, IcebergFiles(commits)

    def access(self, spark: SparkSession, path: str, application: str) -> DriverAccess:
        """Return the access to a table; see TableFormat."""
        from slackwater.spark_sink.tables.by_driver.iceberg_access import IcebergAccess

        # The watermark log's lines are the sink's.
        return IcebergAccess(spark, *self.log(path, application, has_lines=False))

    def at_once(
        self,
        low_watermark: datetime,  # noqa: ARG002
        *,
        chunk: int | None = None,  # noqa: ARG002
        is_stated: bool = False,  # noqa: ARG002
        incomplete: Collection[str] = (),  # noqa: ARG002
    ) -> AbstractContextManager[None]:
        """Make commits visible at one moment, if the catalog is a REST catalog that can."""
        return self._at_once.collecting()

    @cached_property
    def _at_once(self) -> CommitsAtOnce:
        from slackwater.spark_sink.output.iceberg.pending_commits import CommitsAtOnce

        return CommitsAtOnce()

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists."""
        return self._load(spark, path) is not None

    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """Return the names of the namespace's tables; None for folders."""
        from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors

        place = self.place("")
        with iceberg_errors(place.name):
            return place.tables(spark)

    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:
        """Return the properties by which a catalog removes metadata files; see TableFormat."""
        is_catalogs = keep_s is not None and self.catalog is not None
        return _METADATA_PROPERTIES if is_catalogs else {}

    def read(
        self,
        spark: SparkSession,
        path: str,
        within: RowRange | None = None,  # noqa: ARG002
    ) -> DataFrame:
        """Read a table as it is now; see TableFormat."""
        from slackwater.spark_sink.output.iceberg.snapshot_rows import rows_of

        return rows_of(spark, self._existing(spark, path))

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read the snapshot at the table's published low watermark.

        Raises:
            AsOfTimeError: it is not there.
        """
        from slackwater.spark_sink.output.iceberg.snapshot_rows import rows_of
        from slackwater.spark_sink.output.iceberg.snapshots import PUBLISHED_SNAPSHOT

        retrying = Retrying(
            retry=retry_if_exception_type(AsOfTimeError),
            wait=wait_fixed(1),
            stop=stop_after_delay(_PUBLISHED_S_MAX),
            reraise=True,
        )
        table = retrying(self._published, spark, path)
        if table is None:
            return None
        snapshot = table.properties.get(PUBLISHED_SNAPSHOT)
        rows = rows_of(spark, table, int(snapshot) if snapshot else None)
        # Without a snapshot the table had no rows yet.
        made = rows if snapshot else rows.where("false")
        return made, table.properties[LOW_WATERMARK_PROPERTY]

    def _published(self, spark: SparkSession, path: str) -> Table | None:
        """Return the table with the snapshot that has its published low watermark; see above."""
        from slackwater.spark_sink.output.iceberg.snapshots import PUBLISHED_SNAPSHOT

        table = self._load(spark, path)
        if table is None or LOW_WATERMARK_PROPERTY not in table.properties:
            return None
        snapshot = table.properties.get(PUBLISHED_SNAPSHOT)
        if snapshot is not None and table.metadata.snapshot_by_id(int(snapshot)) is None:
            raise AsOfTimeError(
                f"{path}: the snapshot of its low watermark is not there.",
                "Have the pipeline publish another one: it does after each epoch with changes",
            )
        return table

    def stated(self, spark: SparkSession, path: str) -> str | None:
        """Return the table's published low watermark; see TableStore."""
        table = self._load(spark, path)
        return None if table is None else table.properties.get(LOW_WATERMARK_PROPERTY)

    def version_at(
        self, spark: SparkSession, path: str, application: str, low_watermark: datetime
    ) -> int | None:
        """Return the snapshot at a low watermark, by the summaries of the merges' snapshots."""
        from slackwater.spark_sink.tables.iceberg_history import history_of

        history = history_of(self._existing(spark, path), application)
        return version_at(history, datetime_to_us(low_watermark), path)

    def _load(self, spark: SparkSession, path: str) -> Table | None:
        from pyiceberg.exceptions import NoSuchTableError

        from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors

        place = self.place(path)
        with iceberg_errors(place.name):
            try:
                return place.open(spark).load_table(place.identifier)
            except NoSuchTableError:
                return None

    def _existing(self, spark: SparkSession, path: str) -> Table:
        table = self._load(spark, path)
        if table is None:
            raise PublishError(f"{path}: the table is gone.")
        return table


def _file_catalog(path: str) -> str:
    """Return the name of the catalog of files that a table's directory is in."""
    return f"slackwater_{hashlib.sha256(posixpath.dirname(path).encode()).hexdigest()[:12]}"
