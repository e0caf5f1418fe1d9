"""Iceberg tables: an epoch is a snapshot, and lands once.

A snapshot's summary says which application made it, and its version: the low watermark. A version
that is there is not written again. A MERGE of the same changes changes nothing when it is repeated.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import datetime
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from slackwater.spark_sink.errors import UnknownFormatError, conflict
from slackwater.spark_sink.formats import ICEBERG
from slackwater.spark_sink.output.staging import StagedFiles
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.tables.table_format import LOW_WATERMARK_PROPERTY

_APPLICATION: Final = "slackwater.application"
_VERSION: Final = "slackwater.version"
_SNAPSHOT: Final = "slackwater.snapshot"
_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
_CONFLICTS: Final = ("CommitFailedException", "ValidationException")


class Iceberg:
    """Iceberg tables: see TableFormat.

    Args:
        namespace: a catalog and namespace that the session knows, as SQL writes them; None for a
            catalog of files, in which a table is the directory that it is named by.
        partition_by: columns by which a changelog's table is partitioned when it is made.
    """

    using: Final = ICEBERG

    def __init__(self, namespace: str | None = None, partition_by: Sequence[str] = ()) -> None:
        self._partition_by = tuple(partition_by)
        self._namespace = namespace
        # The newest version that this process knows to be there, by path and application.
        self._versions: dict[tuple[str, str], int] = {}

    def name(self, spark: SparkSession, path: str) -> str:
        """See TableFormat."""
        folder, table = posixpath.split(path)
        if self._namespace is not None:
            return f"{self._namespace}.{identifier(table)}"
        catalog = f"slackwater_{hashlib.sha256(folder.encode()).hexdigest()[:12]}"
        key = f"spark.sql.catalog.{catalog}"
        if spark.conf.get(key, None) is None:
            spark.conf.set(f"{key}.type", "hadoop")
            spark.conf.set(f"{key}.warehouse", folder or ".")
            spark.conf.set(key, _CATALOG)
        return f"{catalog}.{identifier(table)}"

    def exists(self, spark: SparkSession, path: str) -> bool:
        """See TableFormat."""
        return bool(spark.catalog.tableExists(self.name(spark, path)))

    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """See TableFormat."""
        if self._namespace is None:
            return None
        tables = spark.sql(f"SHOW TABLES IN {self._namespace}").collect()
        return [row["tableName"] for row in tables]

    def append(
        self,
        rows: DataFrame,
        path: str,
        application: str,
        version: int,
        staged: StagedFiles | None = None,
    ) -> None:
        """See TableFormat; the files are written again."""
        del staged
        spark, key = rows.sparkSession, (path, application)
        if key not in self._versions:
            self._versions[key] = self._last_version(spark, path, application)
        if version <= self._versions[key]:
            return
        snapshot_properties = {_APPLICATION: application, _VERSION: str(version)}
        writer = rows.writeTo(self.name(spark, path))
        for name, value in snapshot_properties.items():
            writer = writer.option(f"snapshot-property.{name}", value)
        # If this fails, only the table knows whether the snapshot is there.
        del self._versions[key]
        with self.translating_conflicts(path):
            if self.exists(spark, path):
                writer.append()
            else:
                writer = writer.using(ICEBERG)
                if self._partition_by:
                    writer = writer.partitionedBy(*map(F.col, self._partition_by))
                writer.create()
        self._versions[key] = version

    def compact(self, spark: SparkSession, path: str) -> None:
        """See TableFormat."""
        catalog, _, table = self.name(spark, path).partition(".")
        with self.translating_conflicts(path):
            spark.sql(f"CALL {catalog}.system.rewrite_data_files(table => {literal(table)})")

    def last_low_watermark(self, spark: SparkSession, path: str) -> datetime | None:
        """See TableFormat."""
        if not self.exists(spark, path):
            return None
        row = spark.table(self.name(spark, path)).agg(F.max("low_watermark")).first()
        low_watermark: datetime | None = row[0] if row else None
        return low_watermark

    @contextmanager
    def translating_conflicts(self, path: str) -> Iterator[None]:
        """See TableFormat."""
        try:
            yield
        except Exception as error:
            if not any(name in str(error)[:2_000] for name in _CONFLICTS):
                raise
            raise conflict(path) from error

    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> AbstractContextManager[None]:
        """See TableFormat; nothing has to be done for it."""
        del spark, application, low_watermark
        return nullcontext()

    def publish_watermark(self, spark: SparkSession, path: str, low_watermark: str) -> None:
        """See TableFormat; the snapshot is stated with it, since properties have no history."""
        name = self.name(spark, path)
        newest = spark.table(f"{name}.history").orderBy(F.desc("made_current_at")).first()
        properties = {LOW_WATERMARK_PROPERTY: low_watermark}
        if newest is not None:
            properties[_SNAPSHOT] = str(newest["snapshot_id"])
        listed = ", ".join(
            f"{literal(key)} = {literal(value)}" for key, value in properties.items()
        )
        with self.translating_conflicts(path):
            spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({listed})")

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """See TableFormat."""
        if not self.exists(spark, path):
            return None
        name = self.name(spark, path)
        rows = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        properties = {row["key"]: row["value"] for row in rows}
        if LOW_WATERMARK_PROPERTY not in properties:
            return None
        if _SNAPSHOT not in properties:
            # It had no rows yet.
            return spark.table(name).where(F.lit(False)), properties[LOW_WATERMARK_PROPERTY]
        reader = spark.read.option("snapshot-id", properties[_SNAPSHOT])
        return reader.table(name), properties[LOW_WATERMARK_PROPERTY]

    def _last_version(self, spark: SparkSession, path: str, application: str) -> int:
        """The newest version of an application that a snapshot has, -1 for none."""
        if not self.exists(spark, path):
            return -1
        summary = F.col("summary")
        own_snapshots = spark.table(f"{self.name(spark, path)}.snapshots").where(
            summary[_APPLICATION] == application
        )
        row = own_snapshots.agg(F.max(summary[_VERSION].cast("bigint"))).first()
        return -1 if row is None or row[0] is None else int(row[0])


def spark_conf(spark_version: str) -> dict[str, str]:
    """What a session needs for Iceberg; the jar comes from Maven's repository at the first start.

    Args:
        spark_version: such as 4.1.3.

    Raises:
        UnknownFormatError: Iceberg does not work on this Spark.
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


_PACKAGES: Final = {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}
