"""Epochs staged beside tables in an object store, of which a small one takes no request.

Spark's writer takes about a hundred requests to stage an epoch there. Tasks hand small files to the
driver instead, and upload large ones. Spark reads them by Hadoop's connector, if it is to.
"""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER
from slackwater.spark_sink.output.object_store import (
    ObjectFiles,
    names_below,
    open_object_store,
    read,
    remove_together,
    requests_to,
)
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.staging import (
    ALL_FILES,
    Staging,
    read_small_files,
    require_all,
)
from slackwater.spark_sink.output.watermark_log import FOLDER, WatermarkLog
from slackwater.spark_sink.sink import EpochSummary

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from slackwater.spark_sink.output.file_writer import WrittenFile

_OF_TASKS: Final = "tasks"


class StoreStaging(Staging):
    """Epochs in Parquet, in memory or below the staging folder of one owner.

    Args:
        path: the output's URL, which Hadoop's connector knows, too.
        options: see open_object_store().
        preparation: makes what is written.
    """

    def __init__(
        self, path: str, options: Mapping[str, str], preparation: Preparation | None = None
    ) -> None:
        super().__init__(path, preparation)
        self.options = dict(options)
        # Of the epoch that was staged last, unless Spark wrote it.
        self._files: dict[int, Sequence[WrittenFile]] = {}
        # The names of those that were in memory, and Spark has to read.
        self._uploaded: Sequence[str] | None = None
        self._upload_lock = threading.Lock()
        self._has_objects = False
        self._is_reached = False

    def require_reached(self) -> None:
        """Ask the store for a list, the first time.

        Raises:
            ObjectStoreError: it refuses, or there is no such bucket.
            PublishError: it does not answer.
        """
        if not self._is_reached:
            with requests_to(self.path, is_start=True, purpose="listing the objects"):
                next(iter(self._store.list(f"{FOLDER}/")), None)
            self._is_reached = True

    def watermark_log(self, pipeline: str) -> WatermarkLog:
        """Return the log of the tables that are staged for."""
        files = ObjectFiles(self.path, self.options, FOLDER)
        return WatermarkLog(self.path, pipeline, lambda: files)

    @property
    def _folder(self) -> str:
        """The folder below which tasks stage files."""
        return f"{STAGING_FOLDER}/{self.owner}/{_OF_TASKS}"

    @cached_property
    def _store(self) -> ObjectStore:
        return open_object_store(self.path, self.options)

    def task_writer(self, spark: SparkSession, schema: StructType) -> str | None:
        """Return how tasks write epochs; see Staging."""
        if not self._preparation.writes_records:
            return super().task_writer(spark, schema)
        from slackwater.spark_sink.output.file_writer import FileWriter
        from slackwater.spark_sink.output.task_writer import TaskWriter

        self._schema = self._preparation.schema_of(schema)
        prefix, suffix = f"{self._folder}/part-", f".{PARQUET}"
        files = FileWriter(self.path, self.options, prefix, PARQUET, suffix=suffix)
        return TaskWriter.of(self._preparation, files).to_text()

    def stage(self, epoch: DataFrame, epoch_id: int) -> EpochSummary:
        """Take what tasks have written, or have Spark write; see Staging."""
        from slackwater.spark_sink.output.task_writer import handed_on, is_handed_on

        if not is_handed_on(epoch):
            self._files = {}
            return super().stage(epoch, epoch_id)
        self._be_alone(epoch.sparkSession)
        handed = handed_on(epoch)
        self._files, self._uploaded = {epoch_id: handed.files}, None
        self._has_objects |= any(file.staged for file in handed.files)
        return self._noted(epoch_id, handed.counts, self.owner)

    def read_staged(self, spark: SparkSession, epoch_id: int) -> DataFrame:
        """Return the rows of a staged epoch; files in memory are uploaded for it; see Staging."""
        if (files := self._files.get(epoch_id)) is None:
            return super().read_staged(spark, epoch_id)
        assert self._schema is not None  # noqa: S101 - set by task_writer()
        names = [*self._upload(files), *(file.staged for file in files if file.staged)]
        urls = [f"{self.path.rstrip('/')}/{name}" for name in names]
        frame = spark.read.schema(self._schema).options(**ALL_FILES).parquet(*urls)
        # Spark passes over one that is removed between its two looks at it.
        require_all(f"{self.path}/{self._folder}", "files", len(frame.inputFiles()), len(urls))
        return frame

    def read_small(
        self, spark: SparkSession, epoch_id: int, columns: Sequence[str], max_bytes: int
    ) -> pa.Table | None:
        """Return columns of a staged epoch, or None; see Staging."""
        if (files := self._files.get(epoch_id)) is None:
            return super().read_small(spark, epoch_id, columns, max_bytes)
        if sum(file.size for file in files) > max_bytes:
            return None
        contents = [self._content(file) for file in files]
        return read_small_files(list(map(io.BytesIO, contents)), columns, max_bytes)

    def discard(self, spark: SparkSession, epoch_id: int) -> None:
        """Remove a staged epoch, and what failed attempts of its tasks have left."""
        if self._files.pop(epoch_id, None) is None:
            super().discard(spark, epoch_id)
        elif self._has_objects:
            with requests_to(self.path, purpose="removing staged files"):
                remove_together(self._store, names_below(self._store, self._folder))
            self._has_objects = False

    def _content(self, file: WrittenFile) -> bytes:
        if file.content is not None:
            return file.content
        name = file.staged or ""
        with requests_to(self.path, purpose="reading a staged file"):
            content = read(self._store, name)
        if content is None:
            raise PublishError(
                f"{self.path}/{name} is gone.",
                "Another process may have taken the pipeline over; the epoch is read again",
            )
        return content

    def _upload(self, files: Sequence[WrittenFile]) -> Sequence[str]:
        """Return the names of the files that were in memory. Several tables ask at one time."""
        with self._upload_lock:
            if self._uploaded is None:
                contents = [file.content for file in files if file.content is not None]
                names = [f"{self._folder}/{uuid.uuid4().hex}.{PARQUET}" for _ in contents]
                self._has_objects = True
                with requests_to(self.path, purpose="staging a file"):
                    for name, content in zip(names, contents, strict=True):
                        self._store.put(name, content, use_multipart=False)
                self._uploaded = names
            return self._uploaded
