"""The folder in which one process stages files on a disk; its successor removes it."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import FileSystemError, PublishError, missing_files
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile
from slackwater.spark_sink.output.small_files import NO_LINKS, local_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PREFIX: Final = "part-"


def require_this_disk(spark: SparkSession, folder: Path, setting: str) -> None:
    """Refuse a path that Spark takes for another place than this process does.

    Raises:
        FileSystemError: it does.
    """
    if local_path(spark, setting) != folder:
        raise FileSystemError(
            f"{setting} is another place than {folder} on a local disk by Spark's settings, such as"
            " fs.defaultFS.",
            f"Write file://{folder} for the disk, or the other place with its scheme",
        )


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Turn a disk's errors into ours.

    Args:
        what: is done, and can't be.

    Raises:
        PublishError: the disk refuses, or is full.
    """
    try:
        yield
    except OSError as error:
        raise PublishError(
            f"{error.filename or what} can't be written, read or removed: {error.strerror}.",
            "Check that the directory is writable, and has space",
        ) from error


class StagingFolder:
    """The folder of one owner, below an output's.

    Args:
        output: the output's folder.
        owner: the owner's unique name; None for a new one.

    Attributes:
        owner: the same.
    """

    def __init__(self, output: Path, owner: str | None = None) -> None:
        self._output = output
        self.owner = owner or uuid.uuid4().hex

    def path(self, kind: str) -> Path:
        """Return where files of one kind wait, such as those of a scan."""
        return self._output / STAGING_FOLDER / self.owner / kind

    def writer(self, kind: str, file_format: str, partition_by: Sequence[str]) -> FileWriter:
        """Return a writer of files for tasks."""
        suffix, columns = f".{file_format}", tuple(partition_by)
        return FileWriter(str(self.path(kind)), {}, _PREFIX, file_format, columns, suffix)

    def move(self, kind: str, file: WrittenFile, target: Path) -> None:
        """Move a task's file to another place on the disk.

        Raises:
            PublishError: it is not there, or not whole, or the disk refuses.
        """
        source = self.path(kind) / (file.staged or "")
        try:
            source.rename(target)
            size = target.stat().st_size
        except OSError as error:
            raise missing_files(
                f"a task's file {source} can't be moved to {target}: {error.strerror}."
            ) from error
        if size != file.size:
            raise PublishError(
                f"{target} has {size} of the {file.size} bytes that a task wrote.",
                "The epoch is read again",
            )

    def discard(self, kind: str, but: Collection[Path] = ()) -> None:
        """Remove all staged files of a kind, except some folders."""
        folder = self.path(kind)
        for path in folder.iterdir() if folder.exists() else ():
            if path not in but:
                remove_path(path)


def staged_by_all(output: Path) -> list[Path]:
    """Return the folders of all owners, which may be former ones."""
    folder = output / STAGING_FOLDER
    return list(folder.iterdir()) if folder.exists() else []


def remove_path(path: Path) -> None:
    """Remove a file or a folder, even if others remove it or add to it at the same time."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def require_links(output: Path) -> None:
    """Refuse a file system without hard links, by which the number of a commit is taken once.

    Raises:
        FileSystemError: it has none.
        OSError: the disk refuses.
    """
    staging = output / STAGING_FOLDER
    staging.mkdir(parents=True, exist_ok=True)
    probe, link = staging / uuid.uuid4().hex, staging / uuid.uuid4().hex
    probe.touch()
    try:
        link.hardlink_to(probe)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        raise FileSystemError(
            f"{output} is on a file system without hard links, by which of two processes one"
            " commits.",
            "Choose another disk",
        ) from error
    finally:
        link.unlink(missing_ok=True)
        probe.unlink(missing_ok=True)
