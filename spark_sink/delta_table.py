"""The changelog as one Delta table: an epoch is one commit, and lands once.

A Delta table remembers, for each application, the highest version of a transaction that it has
committed (Delta's protocol, "Transaction Identifiers"); a write with that version or a lower one
changes nothing. The low watermark is such a version: it only rises, also when the checkpoint is
lost and Spark counts its micro-batches from 0 again.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from spark_sink.errors import PublishError
from spark_sink.formats import DELTA

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class DeltaTable:
    """A Delta table that epochs are appended to.

    Args:
        spark: a session with Delta's jar, extension and catalog: see spark_conf().
        path: the table's directory, made with the first epoch.
        application: names whoever writes; each pipeline has its own name.
    """

    def __init__(self, spark: SparkSession, path: str, application: str) -> None:
        self._spark = spark
        self._path = path
        self._application = application

    def append(self, epoch: DataFrame, low_watermark: datetime) -> None:
        """Append an epoch in one commit; nothing happens if it, or a later one, is there.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        version = (low_watermark.astimezone(UTC) - _EPOCH) // timedelta(microseconds=1)
        try:
            (
                epoch.write.format(DELTA)
                .mode("append")
                .option("txnAppId", self._application)
                .option("txnVersion", str(version))
                .save(self._path)
            )
        except Exception as error:
            if "Concurrent" not in type(error).__name__ + str(error)[:200]:
                raise
            raise PublishError(
                f"another process committed to {self._path} at the same time.",
                "Each pipeline needs a table of its own",
            ) from error

    def last_low_watermark(self) -> datetime | None:
        """That of the newest epoch with records; None where the table does not exist."""
        jvm = self._spark._jvm
        assert jvm is not None  # noqa: S101 - a session has its JVM
        # Not by the log's directory: whoever died within the first commit left it without one.
        if not jvm.io.delta.tables.DeltaTable.isDeltaTable(self._spark._jsparkSession, self._path):
            return None
        table = self._spark.read.format(DELTA).load(self._path)
        row = table.agg(F.max("low_watermark")).first()
        found: datetime | None = row[0] if row else None
        return found


def spark_conf(spark_version: str) -> dict[str, str]:
    """What a session needs for Delta; the jars come from Maven's repository at the first start.

    Args:
        spark_version: such as 4.1.3.
    """
    package = _PACKAGES.get(".".join(spark_version.split(".")[:2]), _PACKAGES["4.1"])
    return {
        "spark.jars.packages": package,
        # Spark brings these itself.
        "spark.jars.excludes": ",".join(_EXCLUDED),
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        # A commit runs a handful of queries over Delta's log: compiling them takes longer than
        # running them.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        # A table's state is read in so many tasks; an epoch is smaller than any of them.
        "spark.databricks.delta.snapshotPartitions": "1",
    }


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
