"""Staged files that become a commit of a Delta table as they are, by Delta Kernel.

To append a staged epoch, Spark reads its files, writes them again and computes the table's whole
state to learn which transactions it has seen. Delta Kernel, the library for connectors in the same
jars, finds that in the latest log entry and adds the files themselves: a quarter of the work for a
small epoch. Kernel does not check whether the rows fit the table, so it serves only tables that
require nothing but columns. It writes no checkpoints: one of Kernel's that is interrupted leaves a
file that looks complete but lacks its end. On a local disk delta-rs writes them beside the epochs,
elsewhere Spark does with a commit.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import MICROSECONDS
from slackwater.spark_sink.java import java_call_failed, jvm_of, session_hadoop_conf
from slackwater.spark_sink.output.delta_checkpoints import Checkpoints
from slackwater.spark_sink.output.staging import StagedFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)

# The writer version with append-only tables and invariants of columns; later features have higher
# ones.
_WRITER_VERSION: Final = 2
_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_CHECKPOINT_INTERVAL_DEFAULT: Final = 10
# Kernel reads the log back to a checkpoint or a checksum, and only Spark writes the latter.
_LOG_LENGTH_MAX: Final = 30
# Parts of the names of Spark's settings that Kernel does not follow.
_SETTINGS_OF_SPARK: Final = ("delta.logStore", "delta.autoCompact", "delta.optimizeWrite")
_PROPERTIES: Final = frozenset(
    {
        _CHECKPOINT_INTERVAL,
        "delta.appendOnly",
        "delta.deletedFileRetentionDuration",
        "delta.enableExpiredLogCleanup",
        "delta.logRetentionDuration",
    }
)
_STATISTICS: Final = ("commit_timestamp", "low_watermark", "table_name")
# The nullability flags in a schema's JSON: of columns, and of arrays and maps within them.
_NULL: Final = ("nullable", "containsNull", "valueContainsNull")


@dataclass(frozen=True, slots=True)
class _PreparedAppend:
    """A transaction that has begun, and the staged files that it will add.

    Attributes:
        transaction: Kernel's Transaction.
        files: for each file Hadoop's FileStatus and Kernel's DataFileStatistics.
        rows: the number of rows in all files.
        interval: after how many commits a checkpoint is due.
    """

    transaction: Any
    files: list[tuple[Any, Any]]
    rows: int
    interval: int


class KernelRefusedError(Exception):
    """Kernel can't do it: the settings, the table or its version forbid it."""


class KernelWriter:
    """Commits staged files to the Delta tables of one sink.

    Args:
        local_path: returns a table's folder on a local disk; None if it is elsewhere.
    """

    def __init__(self, local_path: Callable[[SparkSession, str], str | None]) -> None:
        self._local_path = local_path
        self.checkpoints = Checkpoints()
        self._starting = threading.Lock()
        self._is_started = False
        self._engine: Any = None
        self._input: Any = None
        self._conf: Any = None
        # The last table schema and row schema that matched, to compare them once.
        self._compared: tuple[str, StructType] | None = None

    def append(
        self, rows: DataFrame, staged: StagedFiles, path: str, application: str, version: int
    ) -> bool:
        """Append staged rows in one commit, as TableFormat.append() does.

        Returns:
            Whether the rows are in the table; if not, nothing was done, and Spark has to append
            them.

        Raises:
            PublishError: staged files are missing, or can't be moved into the table's directory.
            Py4JJavaError: the commit failed, perhaps because of a concurrent one.
        """
        spark = rows.sparkSession
        try:
            prepared = self._prepare(rows, staged, path, application, version)
        except _preparation_errors() as error:
            if "ConcurrentTransactionException" in str(error):
                return True
            # There is no table yet, Kernel can't write it, or this Kernel has another interface.
            _log.debug("Kernel can't append to %s: %s", path, error)
            return False
        if prepared is None:
            return False
        if prepared.rows != staged.rows:
            raise PublishError(
                f"{staged.folder} has {prepared.rows} of the {staged.rows} rows that were staged"
                " there.",
                "Another process may have taken the pipeline over; the epoch is read again",
            )
        committed = self._commit(spark, prepared, path)
        folder = self._local_path(spark, path)
        if folder is not None and committed % prepared.interval == 0:
            self.checkpoints.begin(folder, committed)
        return True

    def last_version(self, spark: SparkSession, path: str, application: str) -> int | None:
        """Return the version of an application's latest transaction; None without one.

        Raises:
            KernelRefusedError: Kernel can't read the table.
        """
        try:
            self._start(spark)
            if self._engine is None:
                raise KernelRefusedError
            manager = jvm_of(spark).io.delta.kernel.TableManager
            snapshot = manager.loadSnapshot(path).build(self._engine)
            version = snapshot.getLatestTransactionVersion(self._engine, application)
            return int(version.get()) if version.isPresent() else None
        except (java_call_failed(), TypeError) as error:
            _log.debug("Kernel can't read %s: %s", path, error)
            raise KernelRefusedError from error

    def _prepare(
        self, rows: DataFrame, staged: StagedFiles, path: str, application: str, version: int
    ) -> _PreparedAppend | None:
        """Begin a transaction and read the files' statistics; None if the table requires more."""
        spark = rows.sparkSession
        self._start(spark)
        if self._engine is None:
            return None
        jvm = jvm_of(spark)
        kernel = jvm.io.delta.kernel
        snapshot = kernel.TableManager.loadSnapshot(path).build(self._engine)
        interval = _checkpoint_interval(snapshot)
        is_due = (snapshot.getVersion() + 1) % interval == 0
        if is_due and not self._writes_checkpoints(spark, path):
            return None
        if not self._accepts_append(snapshot, rows.schema):
            return None
        builder = snapshot.buildUpdateTableTransaction("slackwater", kernel.Operation.WRITE)
        transaction = builder.withTransactionId(application, version).build(self._engine)
        schema = transaction.getSchema(self._engine)
        columns = jvm.java.util.ArrayList()
        for name in _STATISTICS:
            if schema.indexOf(name) >= 0:
                columns.add(kernel.expressions.Column(name))
        reader = kernel.defaults.internal.parquet.ParquetStatsReader
        folder = jvm.org.apache.hadoop.fs.Path(staged.folder)
        files = []
        for status in folder.getFileSystem(self._conf).listStatus(folder):
            if not status.getPath().getName().startswith(("_", ".")):
                file = self._input.newInputFile(status.getPath().toString(), status.getLen())
                files.append((status, reader.readDataFileStatistics(file, schema, columns)))
        rows_in_files = sum(statistics.getNumRecords() for _, statistics in files)
        return _PreparedAppend(transaction, files, rows_in_files, interval)

    def _start(self, spark: SparkSession) -> None:
        with self._starting:
            if not self._is_started:
                self._is_started = True
                self._make_engine(spark)

    def _make_engine(self, spark: SparkSession) -> None:
        # Kernel reads every timestamp in a Parquet footer as microseconds.
        name, needed = MICROSECONDS
        if spark.conf.get(name, None) != needed:
            return
        if any(part in name for name in spark.conf.getAll for part in _SETTINGS_OF_SPARK):
            return
        jvm = jvm_of(spark)
        engines = jvm.io.delta.kernel.defaults.engine
        self._conf = session_hadoop_conf(spark)
        self._input = engines.hadoopio.HadoopFileIO(self._conf)
        self._engine = engines.DefaultEngine.create(self._input)

    def _accepts_append(self, snapshot: Any, rows: StructType) -> bool:
        """Return whether a table takes rows of any values."""
        if snapshot.getProtocol().getMinWriterVersion() > _WRITER_VERSION:
            return False
        if not snapshot.getPartitionColumnNames().isEmpty():
            return False
        properties = snapshot.getTableProperties()
        if any(name.startswith("delta.") and name not in _PROPERTIES for name in properties):
            return False
        compared = (snapshot.getMetadata().getSchemaString(), rows)
        if compared != self._compared:
            if not rows_fit_table(*compared):
                return False
            self._compared = compared
        return True

    def _writes_checkpoints(self, spark: SparkSession, path: str) -> bool:
        """Return whether a table's checkpoints are written without Spark."""
        folder = self._local_path(spark, path)
        return folder is not None and self.checkpoints.are_written(folder)

    def _commit(self, spark: SparkSession, prepared: _PreparedAppend, path: str) -> int:
        """Move the files into the table's directory, commit them, and return the version.

        VACUUM removes a file that is moved but not committed.
        """
        jvm = jvm_of(spark)
        kernel, engine = jvm.io.delta.kernel, self._engine
        added = jvm.java.util.ArrayList()
        for status, statistics in prepared.files:
            if not statistics.getNumRecords():
                continue
            name = self._move_into_table(spark, status, path)
            modified = status.getModificationTime()
            optional_statistics = jvm.java.util.Optional.of(statistics)
            # The name alone, as the log has it: Kernel escapes an absolute path twice.
            added.add(
                kernel.utils.DataFileStatus(name, status.getLen(), modified, optional_statistics)
            )
        state = prepared.transaction.getTransactionState(engine)
        context = kernel.Transaction.getWriteContext(engine, state, jvm.java.util.HashMap())
        iterator = kernel.internal.util.Utils.toCloseableIterator(added.iterator())
        actions = kernel.Transaction.generateAppendActions(engine, state, iterator, context)
        # No checksum: writing one takes as long as the commit and saves readers less.
        committed = prepared.transaction.commit(
            engine, kernel.utils.CloseableIterable.inMemoryIterable(actions)
        )
        return int(committed.getVersion())

    def _move_into_table(self, spark: SparkSession, status: Any, path: str) -> str:
        """Move a staged file into a table's directory, and return its name."""
        jvm = jvm_of(spark)
        name = str(status.getPath().getName())
        final = jvm.org.apache.hadoop.fs.Path(path, name)
        if not final.getFileSystem(self._conf).rename(status.getPath(), final):
            raise PublishError(
                f"moving {status.getPath().toString()} to {path} was refused.",
                "Check that the directory is writable and on one file system",
            )
        return name


def rows_fit_table(table_schema: str, rows: StructType) -> bool:
    """Return whether rows fit a table, whatever their values.

    Args:
        table_schema: the table's schema in Delta's log: Spark's JSON.
        rows: the schema of the rows; their nullability is ignored.

    Raises:
        ValueError, KeyError: the table has a type that this version of Spark does not know.
    """
    from pyspark.sql.types import StructType

    table = StructType.fromJson(json.loads(table_schema))
    text = table.json()
    if any(f'"{may_be}":false' in text for may_be in _NULL):
        return False
    asks_nothing = all(field.metadata.keys() <= {"comment"} for field in table)
    return asks_nothing and _types(table) == _types(rows)


def _checkpoint_interval(snapshot: Any) -> int:
    """Return after how many commits a table gets a checkpoint."""
    interval = snapshot.getTableProperties().get(_CHECKPOINT_INTERVAL)
    return min(int(interval or _CHECKPOINT_INTERVAL_DEFAULT), _LOG_LENGTH_MAX)


def _preparation_errors() -> tuple[type[Exception], ...]:
    """Return what calls into the JVM raise, and reading a table's schema."""
    from pyspark.errors import PySparkException

    return (java_call_failed(), PySparkException, TypeError, ValueError, KeyError)


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}
