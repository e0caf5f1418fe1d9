"""Where the files of a Delta table wait until a commit names them: beside them, or in the table.

On a disk they wait in a folder of one owner's, which its successor removes, and get their names in
the table by a rename. In an object store, which has no rename, tasks upload large ones to their
names, and the driver small ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile
from slackwater.spark_sink.output.object_store import open_object_store, remove, requests_to
from slackwater.spark_sink.output.staging_folder import StagingFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX: Final = "part-"
_SUFFIX: Final = ".parquet"


class TableFiles(Protocol):
    """The files of one table that no commit names yet."""

    def for_scan(self) -> TableFiles:
        """Return the same for an initial scan: its files wait beside those of epochs."""

    def take_over(self, spark: SparkSession) -> None:
        """Remove what former owners left, where it can be told from others'.

        Raises:
            FileSystemError: Spark takes the path for another place, or its disk can't have commits.
            PublishError: it can't be removed, or the store refuses or fails.
        """

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return what writes files in tasks.

        Args:
            partition_by: the table's partition columns, which are not in its files.
        """

    def place(self, file: WrittenFile) -> str:
        """Give a file its name in the table, and return that.

        Raises:
            PublishError: the place refuses, or the file is gone.
        """

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Remove files that were not placed; on a disk also those of attempts that failed."""


class DiskFiles:
    """Those of a table on a local disk; see TableFiles.

    Args:
        folder: the table's.
        setting: the same as it is set, maybe with a scheme.
        epochs: those of epochs, if these are a scan's.
    """

    def __init__(self, folder: Path, setting: str, epochs: DiskFiles | None = None) -> None:
        self._folder = folder
        self._place = Disk(folder, setting)
        self._staging: StagingFolder = epochs._staging if epochs else StagingFolder(folder)
        self._kind = "scan" if epochs else "epochs"

    def for_scan(self) -> DiskFiles:
        """Return the same owner's for a scan; see TableFiles."""
        return DiskFiles(self._folder, self._place.path, self)

    def take_over(self, spark: SparkSession) -> None:
        """Remove the folders of all former owners, this process before it among them."""
        with self._place.translating():
            self._place.prepare(spark)
            self._place.require_commits()
            # A thread from before may still be at work, if this process had lost the pipeline.
            self._staging.owner = uuid.uuid4().hex
            self._place.remove(self._place.staged())

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return what writes files into the owner's folder; see TableFiles."""
        return self._staging.writer(self._kind, PARQUET, partition_by)

    def place(self, file: WrittenFile) -> str:
        """Move a file into the table's folder; see TableFiles."""
        name = file.staged or ""
        self._staging.take(self._kind, file, self._folder / name)
        return name

    def discard(self, files: Iterable[WrittenFile]) -> None:  # noqa: ARG002
        """Remove all that waits; see TableFiles."""
        self._staging.discard(self._kind)


class BucketFiles:
    """Those of a table in an object store; see TableFiles.

    Args:
        path: the table's URL.
        options: see open_object_store().
    """

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._path = path
        self._options = dict(options)
        self._store = open_object_store(path, options)

    def for_scan(self) -> BucketFiles:
        """Return the same: each file has a name of its own; see TableFiles."""
        return self

    def take_over(self, spark: SparkSession) -> None:  # noqa: ARG002
        """See whether there is such a bucket: Delta's client does not say so; see TableFiles.

        What was uploaded stays: the versions that somebody reads may have it.
        """
        with requests_to(self._path):
            next(iter(self._store.list("_delta_log/")), None)

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return what uploads large files to their names; see TableFiles."""
        columns = tuple(partition_by)
        return FileWriter(self._path, self._options, _PREFIX, PARQUET, columns, _SUFFIX)

    def place(self, file: WrittenFile) -> str:
        """Upload a file that is in memory; see TableFiles."""
        if file.content is None:
            return file.staged or ""
        name = f"{_PREFIX}{uuid.uuid4().hex}{_SUFFIX}"
        with requests_to(self._path):
            self._store.put(name, file.content, use_multipart=False)
        return name

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Remove files that were uploaded; see TableFiles."""
        with requests_to(self._path):
            remove(self._store, [file.staged for file in files if file.staged])
