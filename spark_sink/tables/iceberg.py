"""Iceberg tables: an epoch is one snapshot, which lands once.

A snapshot's summary has the application that wrote it and its version, the low watermark. A version
that the table has is not written again. A repeated MERGE of the same changes changes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import UnknownFormatError, commit_conflict
from slackwater.spark_sink.java import java_session, jvm_of
from slackwater.spark_sink.output.small_files import local_path
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.tables.iceberg_appends import append_once
from slackwater.spark_sink.tables.iceberg_commits import COMMITS_MAX, CONFLICT, commit
from slackwater.spark_sink.tables.iceberg_history import (
    APPLICATION,
    VERSION,
    Ancestor,
    ancestors,
    has_version,
    last_version,
)
from slackwater.spark_sink.tables.iceberg_maintenance import (
    METADATA_PROPERTIES,
    remove_old_metadata,
    remove_old_snapshots,
    set_missing_properties,
)
from slackwater.spark_sink.tables.table_format import LOW_WATERMARK_PROPERTY, MergeId, TableFormat
from slackwater.spark_sink.tables.table_history import History, version_at
from slackwater.timestamp import datetime_to_rfc3339, datetime_to_us, ns_to_us, parse_rfc3339

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.sql.columns import Column

_log = logging.getLogger(__name__)

_SNAPSHOT: Final = "slackwater.snapshot"
_SNAPSHOT_SETTING: Final = "spark.sql.iceberg.snapshot-property"
_CATALOG: Final = "org.apache.iceberg.spark.SparkCatalog"
_CONFLICTS: Final = (
    CONFLICT,
    "ValidationException",
    "AlreadyExistsException",
    "TABLE_OR_VIEW_ALREADY_EXISTS",
)

# How Spark's MERGE changes a row.
_MODE: Final = "write.merge.mode"
_MERGE_ON_READ: Final = "merge-on-read"

_PACKAGES: Final = {"4.1": "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0"}


class Iceberg(TableFormat):
    """The table format Apache Iceberg.

    Args:
        namespace: a catalog of the session and a namespace, as in SQL; None for a catalog of files,
            in which a table is named by its directory.
    """

    using = "iceberg"
    has_catalogs = True

    def __init__(self, namespace: str | None = None) -> None:
        self.namespace = namespace
        # Tables into which the driver merges, and those into which Spark does though it could.
        self._merged_by_driver: set[str] = set()
        self._merged_by_spark: set[str] = set()

    @classmethod
    def from_settings(cls, catalog: str | None) -> Iceberg:
        """Return the format for one sink; see TableFormat."""
        return cls(catalog)

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

    def name(self, spark: SparkSession, path: str) -> str:
        """Return the table's quoted name in Spark SQL; a catalog of files is configured for it."""
        table = identifier(posixpath.basename(path))
        if self.namespace is not None:
            return f"{self.namespace}.{table}"
        for key, value in self.session_settings(path).items():
            if spark.conf.get(key, None) is None:
                spark.conf.set(key, value)
        return f"{_file_catalog(path)}.{table}"

    def session_settings(self, path: str) -> Mapping[str, str]:
        """Return the settings of the table's catalog of files; see TableFormat."""
        if self.namespace is not None:
            return {}
        key = f"spark.sql.catalog.{_file_catalog(path)}"
        # Once the last of them is set, the catalog exists.
        warehouse = posixpath.dirname(path) or "."
        return {f"{key}.type": "hadoop", f"{key}.warehouse": warehouse, key: _CATALOG}

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists."""
        return bool(spark.catalog.tableExists(self.name(spark, path)))

    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """Return the names of the namespace's tables; None for a catalog of files."""
        if self.namespace is None:
            return None
        tables = spark.sql(f"SHOW TABLES IN {self.namespace}").collect()
        return [row["tableName"] for row in tables]

    def append(
        self,
        rows: DataFrame,
        path: str,
        application: str,
        version: int,
    ) -> None:
        """Append rows in one commit, unless the table has this version; files are rewritten."""
        spark = rows.sparkSession
        with self.translating_conflicts(path):
            table = self._load_table(spark, path) if self.exists(spark, path) else None
            if table is not None:
                metadata = table.operations().current()
                if has_version(spark, metadata, application, version):
                    return
            if table is None:
                self._create(rows, path, application, version)
            else:
                append_once(rows, table, application, version)

    def _create(self, rows: DataFrame, path: str, application: str, version: int) -> None:
        """Create the table with its first rows, in one commit; of two processes only one can."""
        writer = rows.writeTo(self.name(rows.sparkSession, path)).using(self.using)
        for name, value in ((APPLICATION, application), (VERSION, str(version))):
            writer = writer.option(f"snapshot-property.{name}", value)
        writer.create()

    def retention_properties(self, keep_s: float | None) -> Mapping[str, str]:
        """Return the properties by which a catalog removes metadata files; see TableFormat."""
        is_safe = keep_s is not None and self.namespace is not None
        return METADATA_PROPERTIES if is_safe else {}

    def ensure_retention(self, spark: SparkSession, path: str, keep_s: float | None) -> None:
        """Set the properties by which a catalog removes metadata files; see TableFormat."""
        properties = self.retention_properties(keep_s)
        if properties and self.exists(spark, path):
            with self.translating_conflicts(path):
                set_missing_properties(self._load_table(spark, path), properties)

    def maintain(
        self, spark: SparkSession, path: str, application: str, keep_s: float | None
    ) -> None:
        """Compact a table, and expire old snapshots; see TableFormat."""
        if not self.exists(spark, path):
            return
        # A merge compacts by itself; it would fail if its files were compacted meanwhile.
        if path not in self._merged_by_driver:
            self._compact(spark.newSession(), path)
            # Its catalog would go on with the files that were replaced.
            spark.sql(f"REFRESH TABLE {self.name(spark, path)}")
        if keep_s is None:
            return
        table, names = self._load_table(spark, path), (APPLICATION, _SNAPSHOT)
        with self.translating_conflicts(path):
            remove_old_snapshots(spark, table, application, names, keep_s)
        if self.namespace is None:
            remove_old_metadata(spark, table, keep_s)

    def _compact(self, spark: SparkSession, path: str) -> None:
        """Rewrite many small files as few large ones."""
        catalog, _, table = self.name(spark, path).partition(".")
        with self.translating_conflicts(path):
            name = f"table => {literal(table)}"
            spark.sql(f"CALL {catalog}.system.rewrite_data_files({name})")
            if self._load_table(spark, path).properties().get(_MODE) == _MERGE_ON_READ:
                spark.sql(f"CALL {catalog}.system.rewrite_position_delete_files({name})")

    def rename_column(self, spark: SparkSession, path: str, name: str, new_name: str) -> None:
        """Rename a column; files stay as they are."""
        table = self.name(spark, path)
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN {identifier(name)} TO {identifier(new_name)}")

    def last_version(self, spark: SparkSession, path: str, application: str) -> int | None:
        """Return the latest version in the summaries of the current snapshot and its ancestors."""
        if not self.exists(spark, path):
            return None
        table = self._load_table(spark, path)
        return last_version(spark, table.operations().current(), application)

    @contextmanager
    def translating_conflicts(self, path: str) -> Iterator[None]:
        """Turn Iceberg's commit conflicts, raised inside, into a PublishError."""
        try:
            yield
        except Exception as error:
            if not any(name in str(error)[:2_000] for name in _CONFLICTS):
                raise
            raise commit_conflict(path) from error

    @contextmanager
    def idempotent_merge(
        self, spark: SparkSession, application: str, low_watermark: datetime
    ) -> Iterator[None]:
        """Name application and low watermark in the snapshot of a MERGE inside.

        A repeated MERGE of the same changes changes nothing by itself. It works by settings of the
        session: nothing else may write Iceberg tables with it meanwhile.
        """
        properties = {APPLICATION: application, VERSION: str(datetime_to_us(low_watermark))}
        for name, value in properties.items():
            spark.conf.set(f"{_SNAPSHOT_SETTING}.{name}", value)
        try:
            yield
        finally:
            for name in properties:
                spark.conf.unset(f"{_SNAPSHOT_SETTING}.{name}")

    def merges_rows(self, spark: SparkSession, path: str) -> bool:
        """Return whether the tables may be on a local disk."""
        return self.namespace is not None or local_path(spark, path) is not None

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
        """Merge a few rows by Arrow and Iceberg's library, if they can; see TableFormat."""
        from slackwater.spark_sink.tables.row_merges.iceberg_merge import (
            IcebergMerge,
            IcebergMergeRefusedError,
            LargeTableError,
        )

        if path in self._merged_by_spark:
            return False
        version = datetime_to_us(merge_id.low_watermark)
        summary = {APPLICATION: merge_id.application, VERSION: str(version)}
        table = self._load_table(spark, path)
        if has_version(spark, table.operations().current(), merge_id.application, version):
            return True
        try:
            with self.translating_conflicts(path):
                merge = IcebergMerge(spark, table)
                merge.merge(rows, columns, summary, keeps_deleted=keeps_deleted)
        except IcebergMergeRefusedError as error:
            self._merged_by_spark.add(path)
            self._merged_by_driver.discard(path)
            _log.info("Spark merges into %s from now on: %s", path, error)
            has_deletes = table.operations().current().formatVersion() > 1
            is_large = isinstance(error, LargeTableError) and has_deletes
            if is_large and _MODE not in table.properties():
                _log.info("%s gets files of deletes: a change no longer rewrites a file", path)
                table.updateProperties().set(_MODE, _MERGE_ON_READ).commit()
            return False
        self._merged_by_driver.add(path)
        return True

    def read(self, spark: SparkSession, path: str) -> DataFrame:
        """Read a table as it is now: the catalog keeps what it has loaded."""
        self._load_table(spark, path)
        return super().read(spark, path)

    def publish_watermark(self, spark: SparkSession, path: str, merge_id: MergeId) -> None:
        """Write to the table's properties up to when it has all changes; see TableFormat.

        Properties have no history, so they name the snapshot; a changed table is looked at anew.
        """
        jvm, low_watermark = jvm_of(spark), datetime_to_rfc3339(merge_id.low_watermark)
        operations = self._load_table(spark, path).operations()
        with self.translating_conflicts(path):
            for _ in range(COMMITS_MAX):
                base = operations.refresh()
                published = base.properties().get(LOW_WATERMARK_PROPERTY)
                merged = last_version(spark, base, merge_id.application)
                if (published or "") >= low_watermark or merge_id.is_before(merged):
                    return
                properties = jvm.java.util.HashMap(base.properties())
                properties.put(LOW_WATERMARK_PROPERTY, low_watermark)
                if (snapshot := base.currentSnapshot()) is not None:
                    properties.put(_SNAPSHOT, str(snapshot.snapshotId()))
                if commit(operations, base, base.replaceProperties(properties)):
                    return
            raise commit_conflict(path)

    def read_at_watermark(self, spark: SparkSession, path: str) -> tuple[DataFrame, str] | None:
        """Read the snapshot at the table's published low watermark."""
        if not self.exists(spark, path):
            return None
        name = self.name(spark, path)
        rows = spark.sql(f"SHOW TBLPROPERTIES {name}").collect()
        properties = {row["key"]: row["value"] for row in rows}
        if LOW_WATERMARK_PROPERTY not in properties:
            return None
        if _SNAPSHOT not in properties:
            # The table had no rows yet.
            return spark.table(name).where("false"), properties[LOW_WATERMARK_PROPERTY]
        reader = spark.read.option("versionAsOf", properties[_SNAPSHOT])
        return reader.table(name), properties[LOW_WATERMARK_PROPERTY]

    def version_at(
        self, spark: SparkSession, path: str, application: str, low_watermark: datetime
    ) -> int | None:
        """Return the snapshot at a low watermark, by the MERGEs' snapshot summaries."""
        history = self._read_history(spark, path, application)
        return version_at(history, datetime_to_us(low_watermark), path)

    def _read_history(self, spark: SparkSession, path: str, application: str) -> History:
        """Return the current snapshot and its ancestors that are not expired."""
        from pyspark.sql import functions as F

        table = self._load_table(spark, path)
        current, properties = table.currentSnapshot(), table.properties()
        published, at = properties.get(_SNAPSHOT), properties.get(LOW_WATERMARK_PROPERTY)
        summary = F.col("summary")
        is_own = summary[APPLICATION] == application
        rows = spark.table(f"{self.name(spark, path)}.snapshots").select(
            "snapshot_id", "parent_id", F.when(is_own, summary[VERSION].cast("bigint"))
        )
        return ancestors(
            {row[0]: Ancestor(row[1], row[2]) for row in rows.collect()},
            None if current is None else current.snapshotId(),
            int(published) if published else None,
            ns_to_us(parse_rfc3339(at)) if at else None,
        )

    def _load_table(self, spark: SparkSession, path: str) -> Any:
        """Return Iceberg's Table as it is now."""
        tables = jvm_of(spark).org.apache.iceberg.spark.Spark3Util
        table = tables.loadIcebergTable(java_session(spark), self.name(spark, path))
        table.refresh()
        return table


def _file_catalog(path: str) -> str:
    """Return the name of the catalog of files that a table's directory is in."""
    return f"slackwater_{hashlib.sha256(posixpath.dirname(path).encode()).hexdigest()[:12]}"
