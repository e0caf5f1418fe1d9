"""Where the files of a Delta table wait until a commit names them: beside them, or in the table.

On a disk they wait in a folder of one owner's, which its successor removes, and get their names in
the table by a rename. In an object store, which has no rename, tasks upload large ones to their
names, and the driver small ones.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from slackwater.spark_sink.errors import FileSystemError, PublishError
from slackwater.spark_sink.formats import PARQUET
from slackwater.spark_sink.output.epoch_directory import STAGING_FOLDER
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile
from slackwater.spark_sink.output.object_store import open_object_store, remove, requests_to
from slackwater.spark_sink.output.small_files import NO_LINKS, local_path
from slackwater.spark_sink.output.staging import Owner

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
        path: the table's folder.
        setting: the same as it is set, maybe with a scheme.
        epochs: those of epochs, if these are a scan's.
    """

    def __init__(self, path: str, setting: str, epochs: DiskFiles | None = None) -> None:
        self._folder = Path(path)
        self._setting = setting
        # Another one after each take-over: a thread from before it may still be at work, if this
        # process had lost the pipeline and got it back.
        self._owner: Owner = epochs._owner if epochs else Owner()
        self._part = "scan" if epochs else "epochs"

    @property
    def _own(self) -> Path:
        return self._folder / STAGING_FOLDER / self._owner.name / self._part

    def for_scan(self) -> DiskFiles:
        """Return the same owner's for a scan; see TableFiles."""
        return DiskFiles(str(self._folder), self._setting, self)

    def take_over(self, spark: SparkSession) -> None:
        """Remove the folders of all former owners, this process before it among them."""
        if local_path(spark, self._setting) != self._folder:
            raise FileSystemError(
                f"{self._setting} is another place than {self._folder} on a local disk by Spark's"
                " settings, such as fs.defaultFS.",
                f"Write file://{self._folder} for the disk, or the other place with its scheme",
            )
        self._owner.name = uuid.uuid4().hex
        staging = self._folder / STAGING_FOLDER
        try:
            staging.mkdir(parents=True, exist_ok=True)
            for folder in list(staging.iterdir()):
                # At once: what a former owner adds meanwhile has no folder. Of what it removes
                # meanwhile nothing is left to do.
                removed = staging / uuid.uuid4().hex
                with suppress(FileNotFoundError):
                    folder.rename(removed)
                shutil.rmtree(removed, ignore_errors=True)
            self._require_links(staging)
        except OSError as error:
            raise PublishError(
                f"{error.filename} can't be prepared: {error.strerror}.",
                "Check that the directory is writable and has space",
            ) from error

    def _require_links(self, staging: Path) -> None:
        """Refuse a file system without hard links, by which Delta's log takes a number once."""
        probe, link = staging / uuid.uuid4().hex, staging / uuid.uuid4().hex
        probe.touch()
        try:
            link.hardlink_to(probe)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise FileSystemError(
                f"{self._folder} is on a file system without hard links, by which two processes"
                " can't commit to Delta's log at the same time.",
                "Choose another disk, or format parquet",
            ) from error
        finally:
            link.unlink(missing_ok=True)
            probe.unlink(missing_ok=True)

    def writer(self, partition_by: Sequence[str]) -> FileWriter:
        """Return what writes files into the owner's folder; see TableFiles."""
        return FileWriter(str(self._own), {}, _PREFIX, PARQUET, tuple(partition_by), _SUFFIX)

    def place(self, file: WrittenFile) -> str:
        """Move a file into the table's folder; see TableFiles."""
        name = file.staged or ""
        try:
            (self._own / name).rename(self._folder / name)
            size = (self._folder / name).stat().st_size
        except OSError as error:
            raise PublishError(
                f"a task's file {self._own / name} can't be moved to {self._folder}:"
                f" {error.strerror}.",
                "Each executor needs the same directory. Or another process has taken the"
                " pipeline over; the epoch is read again",
            ) from error
        if size != file.size:
            raise PublishError(
                f"{self._folder / name} has {size} of the {file.size} bytes that a task wrote.",
                "The epoch is read again",
            )
        return name

    def discard(self, files: Iterable[WrittenFile]) -> None:  # noqa: ARG002
        """Remove all that waits; see TableFiles."""
        shutil.rmtree(self._own, ignore_errors=True)


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
