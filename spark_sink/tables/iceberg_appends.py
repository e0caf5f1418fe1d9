"""Appends to Iceberg tables, each of which lands once.

Spark writes the files, and the driver commits them: on top of metadata in which the version is not
yet, and only there. Spark's own commit would be tried again after that of another owner, and the
epoch would be in the table twice. So the rows go to Iceberg's catalog of rewrites, in which a write
ends with its files: no snapshot names them, as with those that a compaction has written.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.java import java_items, java_session, jvm_of, static_method
from slackwater.spark_sink.tables.iceberg_commits import (
    COMMITS_MAX,
    commit,
    snapshot_id,
    with_current,
)
from slackwater.spark_sink.tables.iceberg_history import (
    APPLICATION,
    VERSION,
    has_all_since,
    has_version,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CATALOG: Final = "slackwater_writes"
_TABLES_CLASS: Final = "org.apache.iceberg.spark.SparkTableCache"
_CATALOG_CLASS: Final = "org.apache.iceberg.spark.SparkRewriteTableCatalog"


def append_once(rows: DataFrame, table: Any, application: str, version: int) -> None:
    """Append rows in one commit, unless the table has this version or a later one.

    Args:
        rows: with the table's columns; those that it lacks have no values.
        table: Iceberg's Table, which as it was loaded had no such version.
        application: see TableFormat.append().
        version: see TableFormat.append().

    Raises:
        PublishError: others committed again and again at the same time, or so long ago that
            snapshots since the table was loaded have expired; the epoch is read again.
        Py4JJavaError: a commit failed, or its answer was lost. The table tells which.
    """
    spark, operations = rows.sparkSession, table.operations()
    loaded = snapshot_id(operations.current().currentSnapshot())
    append = table.newAppend()
    for file in _written(rows, table):
        append.appendFile(file)
    for name, value in _summary(rows, table, application, version).items():
        append.set(name, value)
    for _ in range(COMMITS_MAX):
        # It reads the metadata again, and makes a snapshot that follows the current one.
        snapshot = append.apply()
        base = operations.current()
        if has_version(spark, base, application, version):
            return
        if not has_all_since(base, loaded):
            # One of them may have had it: of a scan not even the last version is kept.
            break
        follows = snapshot.parentId() == snapshot_id(base.currentSnapshot())
        if follows and commit(operations, base, with_current(spark, base, snapshot)):
            return
    raise commit_conflict(str(table.name()))


def _written(rows: DataFrame, table: Any) -> list[Any]:
    """Write rows as files of a table, and return Iceberg's DataFiles."""
    from pyspark.sql import functions as F

    spark = rows.sparkSession
    tables = static_method(spark, _TABLES_CLASS, "get")()
    files = jvm_of(spark).org.apache.iceberg.spark.FileRewriteCoordinator.get()
    spark.conf.set(f"spark.sql.catalog.{_CATALOG}", _CATALOG_CLASS)
    write = f"write_{uuid.uuid4().hex}"
    target = f"{_CATALOG}.{write}"
    tables.add(write, table)
    try:
        # Among them are those in which format version 3 numbers rows: without values it does.
        columns = {name.lower() for name in rows.columns}
        missing = {
            field.name: F.lit(None).cast(field.dataType)
            for field in spark.table(target).schema
            if field.name.lower() not in columns
        }
        rows.withColumns(missing).writeTo(target).append()
        return list(java_items(files.fetchNewFiles(table, write)))
    finally:
        tables.remove(write)
        files.clearRewrite(table, write)


def _summary(rows: DataFrame, table: Any, application: str, version: int) -> Mapping[str, str]:
    """Return what the snapshot's summary says, as Spark's own would, and of the version."""
    spark = rows.sparkSession
    jvm = jvm_of(spark)
    options = jvm.org.apache.spark.sql.util.CaseInsensitiveStringMap.empty()
    conf = jvm.org.apache.iceberg.spark.SparkWriteConf(java_session(spark), table, options)
    of_session = conf.extraSnapshotMetadata().entrySet()
    return {
        "spark.app.id": spark.sparkContext.applicationId,
        **{entry.getKey(): entry.getValue() for entry in java_items(of_session)},
        APPLICATION: application,
        VERSION: str(version),
    }
