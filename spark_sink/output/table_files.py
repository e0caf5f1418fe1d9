"""The files of a table that wait until a commit names them: beside the table, or in it.

On a disk they wait in a folder of one owner's, which its successor removes, and get their names in
the table by a rename. In an object store, which has no rename, tasks upload large ones to their
names, and the driver small ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.file_writer import (
    FileWriter,
    WrittenFile,
    folder_values,
    merge_files,
)
from slackwater.spark_sink.output.object_store import (
    is_object_store,
    open_object_store,
    remove,
    requests_to,
)
from slackwater.spark_sink.output.parquet_stats import stats_text
from slackwater.spark_sink.output.small_files import without_scheme
from slackwater.spark_sink.output.table_commits import DataFile

_PREFIX: Final = "part-"
_SUFFIX: Final = ".parquet"


# In bytes: of the files that become one.
_MERGED_MAX: Final = 32 << 20


class TableFiles(Protocol):
    """The files of one table that no commit names yet.

    Attributes:
        path: the table's, as its commits take it.
    """

    path: str

    def for_scan(self) -> TableFiles:
        """Return the same for an initial scan: its files wait beside those of epochs."""

    def plain(self) -> TableFiles:
        """Return the same for any rows, without the columns of the table."""

    def take_over(self, spark: SparkSession) -> None:
        """Remove former owners' files, where they can be told from others'.

        Raises:
            FileSystemError: Spark takes the path for another place, or its disk can't have commits.
            PublishError: it can't be removed, or the store refuses or fails.
        """

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return a writer of files for tasks.

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
    """The files of a table on a local disk; see TableFiles.

    Args:
        folder: the table's.
        setting: the same as it is set, possibly with a scheme.
        inside: where in the folder the files get their names: with a slash at the end, or empty.
        epochs: those of epochs, if these are a scan's.
    """

    def __init__(
        self, folder: Path, setting: str, inside: str = "", epochs: DiskFiles | None = None
    ) -> None:
        self.path = str(folder)
        self._inside = inside
        self._folder = folder
        self._place = Disk(folder, setting)
        self._owner = uuid.uuid4().hex
        self._epochs = epochs or self
        self._kind = "scan" if epochs else "epochs"

    def for_scan(self) -> DiskFiles:
        """Return the same owner's for a scan; see TableFiles."""
        return DiskFiles(self._folder, self._place.path, self._inside, self)

    def plain(self) -> DiskFiles:
        """Return these; see TableFiles."""
        return self

    def take_over(self, spark: SparkSession) -> None:
        """Remove the folders of all former owners, this process before it among them."""
        with self._place.translating():
            self._place.prepare(spark)
            self._place.require_commits()
            # A thread from before may still be at work, if this process had lost the pipeline.
            self._epochs._owner = uuid.uuid4().hex
            self._place.remove(self._place.staged())

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return a writer of files into the owner's folder; see TableFiles."""
        return self._place.writer(self._epochs._owner, self._kind, PARQUET, partition_by)

    def place(self, file: WrittenFile) -> str:
        """Move a file into the table's folder; see TableFiles."""
        name = f"{self._inside}{file.staged}"
        if self._inside:
            with self._place.translating():
                (self._folder / self._inside).mkdir(exist_ok=True)
        self._place.move(self._epochs._owner, self._kind, file, self._folder / name)
        return name

    def discard(self, files: Iterable[WrittenFile]) -> None:  # noqa: ARG002
        """Remove all waiting files; see TableFiles."""
        self._place.discard(self._epochs._owner, self._kind, ())


class BucketFiles:
    """The files of a table in an object store; see TableFiles.

    Args:
        path: the table's URL.
        options: see open_object_store().
        inside: see DiskFiles.
    """

    def __init__(self, path: str, options: Mapping[str, str], inside: str = "") -> None:
        self.path = path
        self._prefix = f"{inside}{_PREFIX}"
        self._options = dict(options)
        self._store = open_object_store(path, options)

    def for_scan(self) -> BucketFiles:
        """Return the same: each file has a name of its own; see TableFiles."""
        return self

    def plain(self) -> BucketFiles:
        """Return these; see TableFiles."""
        return self

    def take_over(self, spark: SparkSession) -> None:  # noqa: ARG002
        """Check that the bucket exists, because clients of tables do not say so; see TableFiles.

        Uploaded files stay: they may belong to versions that are being read.
        """
        with requests_to(self.path):
            next(iter(self._store.list("_delta_log/")), None)

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return a writer that uploads large files to their names; see TableFiles."""
        columns = tuple(partition_by)
        return FileWriter(self.path, self._options, self._prefix, PARQUET, columns, _SUFFIX)

    def place(self, file: WrittenFile) -> str:
        """Upload a file that is in memory; see TableFiles."""
        if file.content is None:
            return file.staged or ""
        name = f"{self._prefix}{uuid.uuid4().hex}{_SUFFIX}"
        with requests_to(self.path):
            self._store.put(name, file.content, use_multipart=False)
        return name

    def discard(self, files: Iterable[WrittenFile]) -> None:
        """Remove files that were uploaded; see TableFiles."""
        with requests_to(self.path):
            remove(self._store, [file.staged for file in files if file.staged])


def table_files(path: str, options: Mapping[str, str], inside: str = "") -> TableFiles:
    """Return the files of a table.

    Args:
        path: the table's, on a local disk or in an object store, as the settings have it.
        options: see open_object_store().
        inside: see DiskFiles.
    """
    if is_object_store(path):
        return BucketFiles(path, options, inside)
    return DiskFiles(Path(without_scheme(path)), path, inside)


def data_files(files: TableFiles, written: Sequence[WrittenFile]) -> list[DataFile]:
    """Give the files that tasks have written their names in a table, and return them for a commit.

    Of small files that are in memory, those of one folder become one.

    Raises:
        PublishError: see TableFiles.place().
    """
    return [_data_file(files, file) for file in _merged(written)]


def _data_file(files: TableFiles, file: WrittenFile) -> DataFile:
    stats = file.stats
    if file.content is not None:
        stats = stats_text(pq.read_metadata(pa.BufferReader(file.content)))
    return DataFile(files.place(file), file.size, folder_values(file.folder), stats)


def _merged(written: Sequence[WrittenFile]) -> list[WrittenFile]:
    small = [file for file in written if file.content is not None]
    if sum(file.size for file in small) > _MERGED_MAX:
        return list(written)
    merged = [
        WrittenFile(folder, content, None, len(content))
        for folder, content in merge_files(small, PARQUET)
    ]
    return [*merged, *(file for file in written if file.staged)]
