"""Delta tables: an epoch is one commit, and lands once.

A Delta table remembers, for each application, the highest version of a transaction that it has
committed (Delta's protocol, "Transaction Identifiers"); a write with that version or a lower one
changes nothing. The low watermark is such a version: it only rises, also when the checkpoint is
lost and Spark counts its micro-batches from 0 again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from spark_sink.errors import PublishError
from spark_sink.formats import DELTA
from spark_sink.timestamps import microseconds

_APPLICATION: Final = "spark.databricks.delta.write.txnAppId"
_VERSION: Final = "spark.databricks.delta.write.txnVersion"


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

    def append(self, rows: DataFrame, version: int) -> None:
        """Append rows in one commit; nothing happens if this version, or a later one, is there.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        with naming_conflicts(self._path):
            (
                rows.write.format(DELTA)
                .mode("append")
                .option("txnAppId", self._application)
                .option("txnVersion", str(version))
                .save(self._path)
            )

    def last_low_watermark(self) -> datetime | None:
        """That of the newest epoch with records; None where the table does not exist."""
        if not is_delta_table(self._spark, self._path):
            return None
        table = self._spark.read.format(DELTA).load(self._path)
        row = table.agg(F.max("low_watermark")).first()
        found: datetime | None = row[0] if row else None
        return found


def is_delta_table(spark: SparkSession, path: str) -> bool:
    """Whether a table is there, with its first commit.

    Its log's directory is not enough: whoever died within the first commit left one without it.
    """
    jvm: Any = spark._jvm
    return bool(jvm.io.delta.tables.DeltaTable.isDeltaTable(spark._jsparkSession, path))


@contextmanager
def naming_conflicts(path: str) -> Iterator[None]:
    """Two processes that commit at once are an error of their own.

    Raises:
        PublishError: Delta refused what was committed inside, for a commit beside it.
    """
    try:
        yield
    except Exception as error:
        if "Concurrent" not in type(error).__name__ + str(error)[:200]:
            raise
        raise PublishError(
            f"another process committed to {path} at the same time.",
            "Each pipeline needs a table of its own",
        ) from error


@contextmanager
def once(spark: SparkSession, application: str, low_watermark: datetime) -> Iterator[None]:
    """Every MERGE inside is committed once a table and low watermark.

    The session's settings say so: nothing else may write Delta tables with it meanwhile.
    """
    settings = {_APPLICATION: application, _VERSION: str(microseconds(low_watermark))}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in settings:
            spark.conf.unset(name)


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
