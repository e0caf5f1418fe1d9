"""Delta tables: an epoch is one commit, which lands once.

A Delta table remembers each application's highest transaction version; a write with it or a lower
one changes nothing (Delta's protocol, "Transaction Identifiers"). The version is the low watermark.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.spark_sink.errors import AsOfTimeError, commit_conflict
from slackwater.spark_sink.output import delta_maintenance
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, refusing
from slackwater.spark_sink.output.delta_features import COLUMN_MAPPING, ENABLE_DELETION_VECTORS
from slackwater.spark_sink.output.small_files import without_scheme
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.tables.direct_table import DirectTable
from slackwater.spark_sink.tables.row_merges.delta_merge import (
    LargeTableError,
    has_property,
    merge_rows,
    publish_low_watermark,
)
from slackwater.spark_sink.tables.row_merges.spark_merge import forget_by_spark, merge_by_spark
from slackwater.spark_sink.tables.table_format import (
    MergeId,
    OtherRows,
    TableFormat,
)
from slackwater.spark_sink.tables.table_history import gone_error, version_at
from slackwater.timestamp import datetime_to_us

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.sql.columns import Column

_log = logging.getLogger(__name__)

_APPLICATION: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"
# For a MERGE that reads many rows; see spark_conf() for the others.
_COMPILED: Final = {
    "spark.sql.codegen.wholeStage": "true",
    "spark.sql.codegen.factoryMode": "FALLBACK",
}
_CONFLICTS: Final = ("Concurrent", "MetadataChanged", "ProtocolChanged", "MaxCommitRetryLimit")

_PACKAGES: Final = {
    "4.1": "io.delta:delta-spark_4.1_2.13:4.3.0",
    "4.2": "io.delta:delta-spark_4.2_2.13:4.4.0",
}
_EXCLUDED: Final = (
    "com.fasterxml.jackson.core:jackson-annotations",
    "com.fasterxml.jackson.core:jackson-core",
    "com.fasterxml.jackson.core:jackson-databind",
    "com.github.luben:zstd-jni",
    "org.apache.hadoop:hadoop-client-api",
    "org.apache.hadoop:hadoop-client-runtime",
    "org.apache.logging.log4j:log4j-api",
    "org.apache.logging.log4j:log4j-core",
    "org.apache.logging.log4j:log4j-slf4j2-impl",
    "org.apache.parquet:parquet-column",
    "org.apache.parquet:parquet-common",
    "org.apache.parquet:parquet-encoding",
    "org.apache.parquet:parquet-format-structures",
    "org.apache.parquet:parquet-hadoop",
    "org.apache.parquet:parquet-jackson",
    "org.slf4j:slf4j-api",
    "org.xerial.snappy:snappy-java",
)


class Delta(TableFormat):
    """The table format Delta Lake on a local disk; in object stores see DeltaByDriver.

    Of mirrors, and of typed changelogs if their columns are mapped.
    """

    using = "delta"
    marks_refused = " ,;{}()\n\t="
    names_any_column: ClassVar[tuple[str, Sequence[str]]] = (COLUMN_MAPPING, ("name", "id"))

    def __init__(self) -> None:
        self._direct: dict[str, DirectTable] = {}
        # Tables into which the driver merges, and those into which Spark does though it could.
        self._merged_by_driver: set[str] = set()
        self._merged_by_spark: set[str] = set()
        self._has_large = False

    @classmethod
    def from_settings(cls, catalog: str | None) -> Delta:  # noqa: ARG003
        """Return the format for one sink; see TableFormat."""
        return cls()

    @staticmethod
    def spark_conf(spark_version: str) -> dict[str, str]:
        """Return the Spark settings for Delta; the jars come from Maven at the first start.

        Args:
            spark_version: such as 4.1.3.
        """
        package = _PACKAGES.get(".".join(spark_version.split(".")[:2]), _PACKAGES["4.1"])
        return {
            "spark.jars.packages": package,
            # Spark brings these.
            "spark.jars.excludes": ",".join(_EXCLUDED),
            "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
            "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
            # A commit runs a handful of queries over Delta's log: compiling them takes longer than
            # running them.
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
            # How many tasks read a table's state: an epoch is too small for more than one.
            "spark.databricks.delta.snapshotPartitions": "1",
            # For tables created here. A commit of Spark's with a checkpoint takes twice as long,
            # and by default one in ten has one. In return a reader lists so many small log files.
            "spark.databricks.delta.properties.defaults.checkpointInterval": "30",
        }

    def name(self, spark: SparkSession, path: str) -> str:
        """Return the table's quoted name in Spark SQL."""
        del spark
        return f"delta.{identifier(path)}"

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists and has its first commit.

        The log's directory alone proves nothing: a first commit that broke off leaves one behind.
        """
        del spark
        return delta_maintenance.has_commits(path, self.storage_options)

    def list_tables(self, spark: SparkSession) -> None:
        """Return None: tables are directories."""

    def append(
        self,
        rows: DataFrame,
        path: str,
        application: str,
        version: int,
    ) -> None:
        """Append rows in one commit, unless the table has this version or a later one."""
        with self.translating_conflicts(path):
            writer = rows.write.format(self.using).mode("append")
            writer = writer.option("txnAppId", application)
            writer.option("txnVersion", str(version)).save(path)

    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:
        """Return the properties by which checkpoints forget removed files; see TableFormat."""
        return delta_maintenance.retention_properties(keep_s)

    def maintain(
        self,
        spark: SparkSession,
        path: str,
        application: str,  # noqa: ARG002 - Delta's checkpoints remember it
        keep_s: float | None,
    ) -> None:
        """Compact a table, by delta-rs if it can, and remove old versions; see TableFormat."""
        spark = spark.newSession()
        if not self.exists(spark, path):
            return
        # A merge compacts by itself; it would fail if its files were compacted meanwhile.
        if path not in self._merged_by_driver:
            self._compact(spark, path)
        if keep_s is None:
            return
        self.ensure_retention(spark, path, keep_s)
        delta_maintenance.expire(path, {}, keep_s)

    def ensure_retention(self, spark: SparkSession, path: str, keep_s: float | None) -> None:
        """Set the property for removed files, unless the table has one."""
        properties = self.retention_properties(keep_s)
        table = self.name(spark, path)
        present = {row["key"] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
        for name in properties.keys() - present:
            self._set_property(spark, path, name, properties[name])

    def _compact(self, spark: SparkSession, path: str) -> None:
        """Compact a table; the session is nobody else's."""
        from slackwater.spark_sink.output.delta_compaction import compact

        folder = without_scheme(path)
        try:
            delta_maintenance.forget_checksum(folder)
            compact(folder, {})
        except DeltaUnsupportedError as error:
            _log.debug("Spark compacts %s: %s", path, error)
        else:
            return
        for name, value in _COMPILED.items():
            spark.conf.set(name, value)
        with self.translating_conflicts(path):
            spark.sql(f"OPTIMIZE {self.name(spark, path)}")

    def rename_column(self, spark: SparkSession, path: str, name: str, new_name: str) -> None:
        """Rename a column by writing the table again.

        Delta's own RENAME COLUMN needs column mapping, which not all readers can read.
        """
        rows = spark.read.format(self.using).load(path).withColumnRenamed(name, new_name)
        writer = rows.write.format(self.using).mode("overwrite")
        writer.option("overwriteSchema", "true").save(path)

    def last_version(self, spark: SparkSession, path: str, application: str) -> int | None:
        """Return an application's latest transaction identifier in Delta's log; None for none.

        Of append() it is the version, of a merge the low watermark in microseconds.
        """
        if not self.exists(spark, path):
            return None
        # Spark would compute the table's whole state for that.
        with refusing(path):
            return self._table(path).last_version(application)

    def _set_property(self, spark: SparkSession, path: str, name: str, value: str) -> None:
        properties = f"{literal(name)} = {literal(value)}"
        with self.translating_conflicts(path):
            spark.sql(f"ALTER TABLE {self.name(spark, path)} SET TBLPROPERTIES ({properties})")

    @contextmanager
    def translating_conflicts(self, path: str) -> Iterator[None]:
        """Turn Delta's commit conflicts, raised inside, into a PublishError."""
        try:
            yield
        except Exception as error:
            if not any(name in type(error).__name__ + str(error)[:200] for name in _CONFLICTS):
                raise
            raise commit_conflict(path) from error

    @contextmanager
    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> Iterator[None]:
        """Make a MERGE inside change nothing if it is repeated for the same low watermark.

        It works by settings of the session: nothing else may write Delta tables with it meanwhile.
        """
        settings = {_APPLICATION: application, _VERSION: str(datetime_to_us(low_watermark))}
        former = {name: str(spark.conf.get(name)) for name in _COMPILED}
        for name, value in (settings | (_COMPILED if self._has_large else {})).items():
            spark.conf.set(name, value)
        try:
            yield
        finally:
            for name in settings:
                spark.conf.unset(name)
            for name, value in former.items():
                spark.conf.set(name, value)

    def merges_rows(self, spark: SparkSession, path: str) -> bool:
        """Return True: the driver merges what it can."""
        del spark, path
        return True

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
        """Merge a few rows by delta-rs, if it can; see TableFormat."""
        if path in self._merged_by_spark:
            return False
        direct = self._table(path)
        try:
            others = OtherRows(are_kept=keeps_deleted)
            merge_rows(direct, rows, columns, merge_id, others)
        except DeltaUnsupportedError as error:
            self._merged_by_spark.add(path)
            _log.info("Spark merges into %s from now on: %s", path, error)
            self._merged_by_driver.discard(path)
            if isinstance(error, LargeTableError):
                self._prepare_large(spark, path, direct)
            return False
        self._merged_by_driver.add(path)
        return True

    def merge(
        self,
        spark: SparkSession,
        path: str,
        latest: DataFrame,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Apply an epoch's changes by Spark's MERGE; see TableFormat."""
        del merge_id
        with self.translating_conflicts(path):
            merge_by_spark(spark, self.name(spark, path), latest, columns, others)

    def forget(
        self,
        spark: SparkSession,
        path: str,
        columns: Sequence[Column],
        merge_id: MergeId,
        others: OtherRows,
    ) -> None:
        """Drop what a former table or former columns left; see TableFormat."""
        del merge_id
        with self.translating_conflicts(path):
            forget_by_spark(spark, self.name(spark, path), columns, others)

    def read(self, spark: SparkSession, path: str) -> DataFrame:
        """Read a table as it is now; see TableFormat."""
        return spark.table(self.name(spark, path))

    def _table(self, path: str) -> DirectTable:
        if path not in self._direct:
            self._direct[path] = DirectTable(without_scheme(path), self.storage_options)
        return self._direct[path]

    def _prepare_large(self, spark: SparkSession, path: str, direct: DirectTable) -> None:
        """Have Spark merge into a large table by deletion vectors, in compiled code."""
        self._has_large = True
        for name, value in _COMPILED.items():
            spark.conf.set(name, value)
        if not has_property(direct, ENABLE_DELETION_VECTORS):
            _log.info("%s gets deletion vectors: a change no longer rewrites a file", path)
            self._set_property(spark, path, ENABLE_DELETION_VECTORS, "true")

    def publish_watermark(self, spark: SparkSession, path: str, merge_id: MergeId) -> None:
        """Write to the table's properties up to when it has all changes; see TableFormat."""
        del spark
        with refusing(path):
            publish_low_watermark(self._table(path), merge_id)

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read the table as its history has it at the published low watermark."""
        from slackwater.spark_sink.tables.delta_log import published_version

        if not self.exists(spark, path):
            return None
        with refusing(path):
            published = published_version(path, self.storage_options)
        if published is None:
            return None
        version, low_watermark = published
        return self._read_version(spark, path, version), low_watermark

    def _read_version(self, spark: SparkSession, path: str, version: int) -> DataFrame:
        return spark.read.format(self.using).option("versionAsOf", version).load(path)

    def version_at(
        self,
        spark: SparkSession,  # noqa: ARG002
        path: str,
        application: str,
        low_watermark: datetime,
    ) -> int | None:
        """Return the version at a low watermark, by the MERGEs' transaction identifiers."""
        from slackwater.spark_sink.tables.delta_log import has_all_files, read_history

        options, at_us = self.storage_options, datetime_to_us(low_watermark)
        with refusing(path):
            history = read_history(path, application, options)

        def is_readable(us: int) -> bool:
            try:
                version = version_at(history, us, path)
            except AsOfTimeError:
                return False
            # VACUUM removes no file of the newest version.
            if version is None or version == history.commits[-1].version:
                return True
            with refusing(path):
                return has_all_files(path, options, version)

        if is_readable(at_us):
            return version_at(history, at_us, path)
        merges = [us for us in history.low_watermarks_us if us > at_us]
        # The files of older versions are removed first.
        place = bisect_left(merges, True, key=is_readable)
        raise gone_error(path, at_us, merges[place] if place < len(merges) else None)
