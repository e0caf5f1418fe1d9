"""Staged files that become a commit to a Delta table as they are.

Spark's way to append them reads them, writes them again and works the table's whole state out to
learn which transactions it has seen. Delta's library for connectors, Kernel, which comes with the
same jars, finds that in the newest log entry and adds the files themselves: for a small epoch a
quarter of the work. What it does not look at is whether the rows suit the table, so it is for
tables that ask for nothing but columns. Checkpoints stay Spark's: a stop in the middle of one of
Kernel's leaves a file that is whole to look at and lacks what came after.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.staging import StagedFiles

_log = logging.getLogger(__name__)

# Appends only and what columns say for themselves; all that came later has a higher version.
_WRITER_VERSION: Final = 2
_CHECKPOINT_INTERVAL: Final = "delta.checkpointInterval"
_CHECKPOINT_INTERVAL_DEFAULT: Final = 10
# Kernel reads a log back to a checkpoint or a checksum, both of which are Spark's to write.
_LOG_LENGTH_MAX: Final = 30
# What Kernel leaves to whoever commits, or knows by settings of its own.
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
# What a schema's JSON says of columns, and of arrays and maps within them.
_NULL: Final = ("nullable", "containsNull", "valueContainsNull")
# Kernel takes every timestamp in a footer for one of these.
_TIMESTAMPS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
# What calls into the JVM raise, and what reading a table's schema does.
_FAILED: Final = (Py4JError, PySparkException, TypeError, ValueError, KeyError)


@dataclass(frozen=True, slots=True)
class _PreparedAppend:
    """A transaction that has begun, and the staged files that it shall add.

    Attributes:
        transaction: Kernel's.
        files: a file's status as Hadoop has it, and its statistics as Kernel has them.
        records: of all files.
    """

    transaction: Any
    files: list[tuple[Any, Any]]
    records: int


class KernelWriter:
    """Commits staged files to the Delta tables of one sink."""

    def __init__(self) -> None:
        self._is_started = False
        self._engine: Any = None
        self._input: Any = None
        self._conf: Any = None
        # Of tables and rows that were compared last, to compare them once.
        self._compared: tuple[str, StructType] | None = None

    def append(
        self, rows: DataFrame, staged: StagedFiles, path: str, application: str, version: int
    ) -> bool:
        """Append staged rows: see TableFormat.append().

        Returns:
            Whether they are in the table; if not, nothing was done, and it is Spark's to append
            them.

        Raises:
            PublishError: the staged files are not all there, or can't be moved into the table's
                directory.
            Py4JJavaError: as Spark's way raises it; another commit may have come between.
        """
        spark = rows.sparkSession
        try:
            prepared = self._prepare(rows, staged, path, application, version)
        except _FAILED as error:
            if "ConcurrentTransactionException" in str(error):
                return True
            # No table yet, one that Kernel does not know how to write; no Kernel, or another one.
            _log.debug("Kernel can't append to %s: %s", path, error)
            return False
        if prepared is None:
            return False
        if prepared.records != staged.records:
            raise PublishError(
                f"{staged.folder} has {prepared.records} of the {staged.records} records that"
                " were staged there.",
                "Another process may have taken the pipeline over; the epoch is read again",
            )
        self._commit(spark, prepared, path)
        return True

    def _prepare(
        self, rows: DataFrame, staged: StagedFiles, path: str, application: str, version: int
    ) -> _PreparedAppend | None:
        """Begin a transaction and look at the files, or None where the table asks for more."""
        spark = rows.sparkSession
        self._start(spark)
        if self._engine is None:
            return None
        jvm: Any = spark._jvm
        kernel = jvm.io.delta.kernel
        snapshot = kernel.TableManager.loadSnapshot(path).build(self._engine)
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
        records = sum(statistics.getNumRecords() for _, statistics in files)
        return _PreparedAppend(transaction, files, records)

    def _start(self, spark: SparkSession) -> None:
        if self._is_started:
            return
        self._is_started = True
        name, needed = _TIMESTAMPS
        if spark.conf.get(name, None) != needed:
            return
        if any(part in name for name in spark.conf.getAll for part in _SETTINGS_OF_SPARK):
            return
        jvm: Any = spark._jvm
        engines = jvm.io.delta.kernel.defaults.engine
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()
        self._input = engines.hadoopio.HadoopFileIO(self._conf)
        self._engine = engines.DefaultEngine.create(self._input)

    def _accepts_append(self, snapshot: Any, rows: StructType) -> bool:
        """Whether a table takes such rows, whatever is in them, and Spark need not write now."""
        if snapshot.getProtocol().getMinWriterVersion() > _WRITER_VERSION:
            return False
        if not snapshot.getPartitionColumnNames().isEmpty():
            return False
        properties = snapshot.getTableProperties()
        if any(name.startswith("delta.") and name not in _PROPERTIES for name in properties):
            return False
        interval = int(properties.get(_CHECKPOINT_INTERVAL) or _CHECKPOINT_INTERVAL_DEFAULT)
        if (snapshot.getVersion() + 1) % min(interval, _LOG_LENGTH_MAX) == 0:
            return False
        compared = (snapshot.getMetadata().getSchemaString(), rows)
        if compared != self._compared:
            if not rows_fit_table(*compared):
                return False
            self._compared = compared
        return True

    def _commit(self, spark: SparkSession, prepared: _PreparedAppend, path: str) -> None:
        """Move the files into the table's directory and commit them.

        A file that is moved and not committed is nobody's, and VACUUM removes it.
        """
        jvm: Any = spark._jvm
        kernel, engine = jvm.io.delta.kernel, self._engine
        added = jvm.java.util.ArrayList()
        for status, statistics in prepared.files:
            if not statistics.getNumRecords():
                continue
            name = self._move_into_table(spark, status, path)
            modified = status.getModificationTime()
            optional_statistics = jvm.java.util.Optional.of(statistics)
            # By its name alone, as the log has it: Kernel escapes twice what is absolute.
            added.add(
                kernel.utils.DataFileStatus(name, status.getLen(), modified, optional_statistics)
            )
        state = prepared.transaction.getTransactionState(engine)
        context = kernel.Transaction.getWriteContext(engine, state, jvm.java.util.HashMap())
        iterator = kernel.internal.util.Utils.toCloseableIterator(added.iterator())
        actions = kernel.Transaction.generateAppendActions(engine, state, iterator, context)
        # The checksum that could follow takes as long, and spares less to who reads it.
        prepared.transaction.commit(
            engine, kernel.utils.CloseableIterable.inMemoryIterable(actions)
        )

    def _move_into_table(self, spark: SparkSession, status: Any, path: str) -> str:
        """Move a staged file into a table's directory; its name."""
        jvm: Any = spark._jvm
        name = str(status.getPath().getName())
        final = jvm.org.apache.hadoop.fs.Path(path, name)
        if not final.getFileSystem(self._conf).rename(status.getPath(), final):
            raise PublishError(
                f"moving {status.getPath().toString()} to {path} was refused.",
                "Check that the directory is writable and on one file system",
            )
        return name


def rows_fit_table(table_schema: str, rows: StructType) -> bool:
    """Whether rows can be a table's, whatever is in them.

    Args:
        table_schema: the table's, as Delta's log has it: Spark's JSON.
        rows: theirs; what may be null does not count.

    Raises:
        ValueError, KeyError: the table has a type that this Spark does not know.
    """
    table = StructType.fromJson(json.loads(table_schema))
    text = table.json()
    if any(f'"{may_be}":false' in text for may_be in _NULL):
        return False
    asks_nothing = all(field.metadata.keys() <= {"comment"} for field in table)
    return asks_nothing and _types(table) == _types(rows)


def _types(schema: StructType) -> dict[str, str]:
    return {field.name: field.dataType.simpleString() for field in schema}
