"""Epochs on their way into a Delta table in an object store, without Spark's Delta.

Tasks write the table's files, or hand small ones on; the driver commits them.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.output import delta_maintenance
from slackwater.spark_sink.output.application import scan_application
from slackwater.spark_sink.output.delta_commits import DataFile, DeltaCommits
from slackwater.spark_sink.output.delta_compaction import DeltaUnsupportedError, compact
from slackwater.spark_sink.output.epoch_files import LatestEpoch
from slackwater.spark_sink.output.file_writer import (
    RESULT,
    FileWriter,
    WrittenFile,
    folder_values,
    merge_files,
    written_files,
)
from slackwater.spark_sink.output.maintenance import NO_MAINTENANCE, Maintenance, MaintenancePolicy
from slackwater.spark_sink.output.object_store import (
    ObjectFiles,
    open_object_store,
    remove,
    requests_to,
)
from slackwater.spark_sink.output.parquet_stats import stats_text
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.task_writer import TaskWriter, handed_on, is_handed_on
from slackwater.spark_sink.sink import EpochSummary
from slackwater.timestamp import datetime_to_us, seconds_to_ms, us_to_datetime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_PREFIX: Final = "part-"
_SUFFIX: Final = ".parquet"
# In bytes: of the files that become one.
_MERGED_MAX: Final = 32 << 20


class DeltaObjects:
    """Epochs become visible by a commit to a Delta table; see EpochFiles.

    Args:
        path: the table's URL.
        options: see open_object_store().
        preparation: makes what is written.
        partition_by: the partition columns of a table that is created.
        application: names the pipeline in the table's transaction identifiers.
        policy: when the table is maintained.
        commits: the table's; None to open it.
    """

    is_one_commit = True

    def __init__(
        self,
        path: str,
        options: Mapping[str, str],
        preparation: Preparation,
        partition_by: Sequence[str],
        application: str,
        *,
        policy: MaintenancePolicy = NO_MAINTENANCE,
        commits: DeltaCommits | None = None,
    ) -> None:
        self._path = path
        self._options = dict(options)
        self._preparation = preparation
        self._partition_by = tuple(partition_by)
        self._application = application
        self._store = open_object_store(path, options)
        retention = delta_maintenance.retention_properties(policy.keep_s)
        self._commits = commits or DeltaCommits(path, options, application, self._store, retention)
        self._policy = policy
        self._maintenance = Maintenance(self._maintain, policy.every_s)
        # Of all epochs; it costs a call to the JVM.
        self._schema: pa.Schema | None = None
        self._written: dict[int, Sequence[WrittenFile]] = {}

    def take_over(
        self,
        spark: SparkSession,  # noqa: ARG002
        logged: Callable[[], datetime | None],  # noqa: ARG002
    ) -> LatestEpoch:
        """Commit this process as the owner; see EpochFiles.

        Raises:
            ObjectStoreError, PublishError: see DeltaCommits.take_over().
        """
        with requests_to(self._path):
            # Delta's client does not say that there is no such bucket.
            next(iter(self._store.list("_delta_log/")), None)
        self._commits.take_over()
        version = self._commits.last_version(self._application)
        if version is None:
            return LatestEpoch()
        return LatestEpoch(us_to_datetime(version), self._commits.last_line())

    def for_scan(self) -> DeltaObjects:
        """Return the same for an initial scan; see EpochFiles."""
        return DeltaObjects(
            self._path,
            self._options,
            self._preparation.unfiltered(),
            self._partition_by,
            self._application,
            commits=self._commits,
        )

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:  # noqa: ARG002
        """Return how tasks write epochs; see TaskWriting."""
        if not self._preparation.writes_records:
            return None
        self._schema = arrow_schema_of(self._preparation.schema_of(schema))
        return TaskWriter.of(self._preparation, self._writer(self._schema)).to_text()

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Write an epoch's files, which no commit names yet; see EpochFiles."""
        if is_handed_on(epoch):
            assert self._schema is not None  # noqa: S101 - set by task_writer()
            self._commits.open(self._schema, self._partition_by)
            handed = handed_on(epoch)
            self._written = {epoch_id: handed.files}
            return handed.counts.summary
        prepared = self._preparation.prepare(epoch)
        if self._schema is None:
            self._schema = arrow_schema_of(prepared.frame.schema)
        writer = self._writer(self._schema)
        result = map_in_arrow(prepared.frame, writer.write, RESULT).toArrow()
        self._written = {epoch_id: written_files(result)}
        return prepared.counts().summary

    def publish(
        self,
        spark: SparkSession,
        epoch_id: int,
        low_watermark: datetime,
        *,
        line: str | None = None,
        chunk: int | None = None,
    ) -> None:
        """Commit an epoch's files; see EpochFiles."""
        application, version = self._application, datetime_to_us(low_watermark)
        if chunk is not None:
            application, version = scan_application(application, low_watermark), chunk
        if self._commits.has_committed(application, version):
            self.discard(spark, epoch_id)
            return
        # If the commit's answer is lost, these files may be the table's: they are not removed.
        written = self._written.pop(epoch_id)
        files = [self._data_file(file) for file in _merged(written)]
        self._commits.append(files, application, version, line)
        self._maintenance.begin_if_due(spark, lambda: [self._path])

    def discard(self, spark: SparkSession, epoch_id: int) -> None:  # noqa: ARG002
        """Remove the files of an epoch that is not committed."""
        with requests_to(self._path):
            remove(
                self._store,
                [file.staged for file in self._written.pop(epoch_id, []) if file.staged],
            )

    def _writer(self, schema: pa.Schema) -> FileWriter:
        """Return what writes files of the table, which is created if it is missing."""
        self._commits.open(schema, self._partition_by)
        columns = self._commits.partition_columns
        return FileWriter(self._path, self._options, _PREFIX, PARQUET, columns, _SUFFIX)

    def _maintain(self, spark: SparkSession, path: str) -> None:  # noqa: ARG002
        keep_s = self._policy.keep_s
        try:
            compact(path, self._options)
        except DeltaUnsupportedError as error:
            raise ObjectStoreError(f"{path} can't be maintained without Spark: {error}.") from error
        if keep_s is not None:
            log, data = (ObjectFiles(path, self._options, folder) for folder in ("_delta_log", ""))
            delta_maintenance.remove_old_versions(
                log,
                data,
                seconds_to_ms(time.time() - keep_s),
                lambda: delta_maintenance.current_files(path, self._options),
            )

    def _data_file(self, file: WrittenFile) -> DataFile:
        """Return a file that is in the table's folder; it is uploaded if it is not there."""
        partition = folder_values(file.folder)
        if file.content is None:
            return DataFile(file.staged or "", file.size, partition, file.stats)
        name = f"{_PREFIX}{uuid.uuid4().hex}{_SUFFIX}"
        with requests_to(self._path):
            self._store.put(name, file.content, use_multipart=False)
        stats = stats_text(pq.read_metadata(pa.BufferReader(file.content)))
        return DataFile(name, len(file.content), partition, stats)


def _merged(written: Sequence[WrittenFile]) -> list[WrittenFile]:
    """Return an epoch's files, of the small ones one for each folder."""
    small = [file for file in written if file.content is not None]
    if sum(file.size for file in small) > _MERGED_MAX:
        return list(written)
    merged = [WrittenFile(folder, content, None) for folder, content in merge_files(small, PARQUET)]
    return [*merged, *(file for file in written if file.staged)]
