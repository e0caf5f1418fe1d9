"""Staged files that become a commit to a Delta table as they are.

Spark's way to append them reads them, writes them again and works the table's whole state out to
learn which transactions it has seen. Delta's library for connectors, Kernel, which comes with the
same jars, finds that in the newest log entry and adds the files themselves: for a small epoch a
third of the work. What it does not look at is whether the rows suit the table, so it is for tables
that ask for nothing but columns.
"""

from __future__ import annotations

import json
import logging
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_sink.errors import PublishError

_log = logging.getLogger(__name__)

# Appends only and what columns say for themselves; all that came later has a higher version.
_WRITER_VERSION: Final = 2
# What Kernel leaves to whoever commits, or knows by settings of its own.
_SETTINGS_OF_SPARK: Final = ("delta.logStore", "delta.autoCompact", "delta.optimizeWrite")
_PROPERTIES: Final = frozenset(
    {
        "delta.appendOnly",
        "delta.checkpointInterval",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
    }
)
_STATISTICS: Final = ("commit_timestamp", "low_watermark", "table_name")


class Kernel:
    """Commits staged files to the Delta tables of one sink."""

    def __init__(self) -> None:
        self._is_started = False
        self._engine: Any = None
        self._input: Any = None
        self._conf: Any = None
        # Of tables and rows that were compared last, to compare them once.
        self._compared: tuple[str, StructType] | None = None

    def append(
        self, rows: DataFrame, folder: str, path: str, application: str, version: int
    ) -> bool:
        """Append staged rows: see TableFormat.append().

        Returns:
            Whether they are in the table; if not, nothing was done, and it is Spark's to append
            them.

        Raises:
            PublishError: a file can't be moved into the table's directory.
            Py4JJavaError: as Spark's way raises it; another commit may have come between.
        """
        spark = rows.sparkSession
        jvm: Any = spark._jvm
        kernel = jvm.io.delta.kernel
        try:
            self._start(spark)
            if self._engine is None:
                return False
            snapshot = kernel.TableManager.loadSnapshot(path).build(self._engine)
            if not self._is_plain(snapshot, rows.schema):
                return False
            operation = kernel.Operation.WRITE
            builder = snapshot.buildUpdateTableTransaction("slackwater", operation)
            transaction = builder.withTransactionId(application, version).build(self._engine)
        except (Py4JError, TypeError) as error:
            if "ConcurrentTransactionException" in str(error):
                return True
            # No table yet, one that Kernel does not know how to write; no Kernel, or another one.
            _log.debug("Kernel can't append to %s: %s", path, error)
            return False
        self._commit(spark, transaction, folder, path)
        return True

    def _start(self, spark: SparkSession) -> None:
        if self._is_started:
            return
        self._is_started = True
        if any(part in name for name in spark.conf.getAll for part in _SETTINGS_OF_SPARK):
            return
        jvm: Any = spark._jvm
        engines = jvm.io.delta.kernel.defaults.engine
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._input = engines.hadoopio.HadoopFileIO(self._conf)
        self._engine = engines.DefaultEngine.create(self._input)

    def _is_plain(self, snapshot: Any, rows: StructType) -> bool:
        """Whether a table takes such rows, whatever is in them."""
        if snapshot.getProtocol().getMinWriterVersion() > _WRITER_VERSION:
            return False
        if not snapshot.getPartitionColumnNames().isEmpty():
            return False
        properties = snapshot.getTableProperties()
        if any(name.startswith("delta.") and name not in _PROPERTIES for name in properties):
            return False
        compared = (snapshot.getMetadata().getSchemaString(), rows)
        if compared != self._compared:
            if not suits(*compared):
                return False
            self._compared = compared
        return True

    def _commit(self, spark: SparkSession, transaction: Any, folder: str, path: str) -> None:
        jvm: Any = spark._jvm
        kernel, engine = jvm.io.delta.kernel, self._engine
        state = transaction.getTransactionState(engine)
        context = kernel.Transaction.getWriteContext(engine, state, jvm.java.util.HashMap())
        files = self._moved(spark, transaction.getSchema(engine), folder, path)
        iterator = kernel.internal.util.Utils.toCloseableIterator(files.iterator())
        actions = kernel.Transaction.generateAppendActions(engine, state, iterator, context)
        committed = transaction.commit(
            engine, kernel.utils.CloseableIterable.inMemoryIterable(actions)
        )
        # A checksum takes as long as the commit, and spares less than that to who reads it.
        due = [str(hook.getType().toString()) for hook in committed.getPostCommitHooks()]
        if "CHECKPOINT" in due:
            self._checkpoint(spark, path)

    def _checkpoint(self, spark: SparkSession, path: str) -> None:
        """Write a checkpoint, and clean up what is too old in the log.

        Kernel's own hook looks at the commit's version, and cleans up after the newest one only.
        """
        jvm: Any = spark._jvm
        try:
            newest = jvm.io.delta.kernel.TableManager.loadSnapshot(path).build(self._engine)
            newest.writeCheckpoint(self._engine)
        except Py4JError as error:
            # The epoch is there without it.
            _log.warning("no checkpoint of %s: %s", path, str(error)[:500])

    def _moved(self, spark: SparkSession, schema: Any, folder: str, path: str) -> Any:
        """Move the files into a table's directory; a list of what Kernel has to know of them.

        One that is not committed then is nobody's, and VACUUM removes it.
        """
        jvm: Any = spark._jvm
        kernel, hadoop_path = jvm.io.delta.kernel, jvm.org.apache.hadoop.fs.Path
        columns = jvm.java.util.ArrayList()
        for name in _STATISTICS:
            if schema.indexOf(name) >= 0:
                columns.add(kernel.expressions.Column(name))
        system = hadoop_path(folder).getFileSystem(self._conf)
        reader = kernel.defaults.internal.parquet.ParquetStatsReader
        moved = jvm.java.util.ArrayList()
        for status in system.listStatus(hadoop_path(folder)):
            name, size = status.getPath().getName(), status.getLen()
            if name.startswith(("_", ".")):
                continue
            staged = self._input.newInputFile(status.getPath().toString(), size)
            statistics = reader.readDataFileStatistics(staged, schema, columns)
            if not statistics.getNumRecords():
                continue
            if not system.rename(status.getPath(), hadoop_path(path, name)):
                raise PublishError(
                    f"moving {name} from {folder} to {path} was refused.",
                    "Check that the directory is writable and on one file system",
                )
            described = jvm.java.util.Optional.of(statistics)
            modified = status.getModificationTime()
            # By its name alone, as the log has it: Kernel escapes twice what is absolute.
            moved.add(kernel.utils.DataFileStatus(name, size, modified, described))
        return moved


def suits(table_schema: str, rows: StructType) -> bool:
    """Whether rows can be a table's, whatever is in them.

    Args:
        table_schema: the table's, as Delta's log has it: Spark's JSON.
        rows: theirs; what may be null does not count.
    """
    table = StructType.fromJson(json.loads(table_schema))
    asks_nothing = all(field.nullable and field.metadata.keys() <= {"comment"} for field in table)
    return asks_nothing and _types(table) == _types(rows)


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}
