"""Delta tables: an epoch is one commit, made once, by the driver and tasks.

A Delta table remembers each application's highest transaction version (Delta's protocol,
"Transaction Identifiers"). The version is the low watermark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.spark_sink.errors import AsOfTimeError
from slackwater.spark_sink.output.delta.features import COLUMN_MAPPING, retention_properties
from slackwater.spark_sink.output.delta.log_files import has_commits
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.spark_sink.tables.table_history import gone_error, version_at
from slackwater.timestamp import datetime_to_us

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
    from slackwater.spark_sink.output.row_range import RowRange
    from slackwater.spark_sink.output.table_files import TableFiles
    from slackwater.spark_sink.tables.by_driver.driver_access import DriverAccess

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
    """The table format Delta Lake."""

    using = "delta"
    marks_refused = " ,;{}()\n\t="
    names_any_column: ClassVar[tuple[str, Sequence[str]]] = (COLUMN_MAPPING, ("name",))

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
            # The tasks that read a table's state: an epoch is too small for more than one.
            "spark.databricks.delta.snapshotPartitions": "1",
            # For tables created here. A commit of Spark's with a checkpoint takes twice as long,
            # and by default one in ten has one. In return a reader lists so many small log files.
            "spark.databricks.delta.properties.defaults.checkpointInterval": "30",
        }

    def name(self, path: str) -> str:
        """Return a table's quoted name in Spark SQL; see TableFormat."""
        return f"delta.{identifier(path)}"

    def log(
        self,
        path: str,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> tuple[DeltaCommits, TableFiles]:
        """Return a table's commits and files; see TableFormat."""
        # With Arrow, which the settings do without.
        from slackwater.spark_sink.output.delta.delta_commits import DeltaCommits
        from slackwater.spark_sink.output.table_files import table_files

        files, options = table_files(path, self.storage_options), self.storage_options
        commits = DeltaCommits(files.path, options, application, properties, has_lines=has_lines)
        return commits, files

    def access(self, spark: SparkSession, path: str, application: str) -> DriverAccess:
        """Return the access to a table; see TableFormat."""
        from slackwater.spark_sink.tables.by_driver.delta_access import DeltaAccess

        # The watermark log's lines are the sink's.
        commits, files = self.log(path, application, has_lines=False)
        return DeltaAccess(spark, commits, files, self.storage_options)

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists and has its first commit.

        The log's directory alone proves nothing: a first commit that broke off leaves one behind.
        """
        del spark
        return has_commits(path, self.storage_options)

    def list_tables(self, spark: SparkSession) -> None:
        """Return None: tables are directories."""

    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:
        """Return the properties by which checkpoints forget removed files; see TableFormat."""
        return retention_properties(keep_s)

    def read(self, spark: SparkSession, path: str, within: RowRange | None = None) -> DataFrame:
        """Read a table as it is now; see TableFormat."""
        from slackwater.spark_sink.tables.by_driver.delta_rows import rows_of

        return rows_of(spark, path, self.storage_options, within=within)

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read the table at the published low watermark, by its history."""
        from slackwater.spark_sink.tables.by_driver.delta_history import published_version
        from slackwater.spark_sink.tables.by_driver.delta_rows import rows_of

        published = published_version(path, self.storage_options)
        if published is None:
            return None
        version, low_watermark = published
        return rows_of(spark, path, self.storage_options, version), low_watermark

    def version_at(
        self,
        spark: SparkSession,  # noqa: ARG002
        path: str,
        application: str,
        low_watermark: datetime,
    ) -> int | None:
        """Return the version at a low watermark, by the MERGEs' transaction identifiers."""
        from slackwater.spark_sink.tables.by_driver.delta_history import has_all_files, read_history

        options, at_us = self.storage_options, datetime_to_us(low_watermark)
        history = read_history(path, application, options)

        def is_readable(us: int) -> bool:
            try:
                version = version_at(history, us, path)
            except AsOfTimeError:
                return False
            # VACUUM removes no file of the newest version.
            if version is None or version == history.commits[-1].version:
                return True
            return has_all_files(path, options, version)

        if is_readable(at_us):
            return version_at(history, at_us, path)
        merges = [us for us in history.low_watermarks_us if us > at_us]
        # The files of older versions are removed first.
        place = bisect_left(merges, True, key=is_readable)
        raise gone_error(path, at_us, merges[place] if place < len(merges) else None)
