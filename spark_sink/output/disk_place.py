"""Epochs on a local disk: each is a folder, which is staged and appears by one rename."""

import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import FileSystemError, PublishError, missing_files
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.epoch_names import STAGING_FOLDER, parse_epoch_name
from slackwater.spark_sink.output.epoch_place import (
    COMPACTION,
    EPOCH_PREFIX,
    Form,
    StoredEpoch,
    file_name,
    missing_error,
)
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile
from slackwater.spark_sink.output.merged_files import sync
from slackwater.spark_sink.output.small_files import NO_LINKS, LocalFiles, local_path

_PREFIX: Final = "part-"


def remove_path(path: Path) -> None:
    """Remove a file or a folder, even if others remove it or add to it at the same time."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class Disk:
    """A folder on a local disk; see EpochPlace.

    Args:
        folder: its path.
        setting: the path in the settings.
    """

    is_one_object = False

    def __init__(self, folder: Path, setting: str) -> None:
        self.path = setting
        self._root = folder
        # By name and modification time; there may be many.
        self._stored: dict[tuple[str, int], StoredEpoch] = {}

    def folder(self, name: str) -> LocalFiles:
        """Return a folder below this one; see EpochPlace."""
        return LocalFiles(self._root / name)

    def names(self) -> list[str]:
        """Return the names in the folder, which may not exist; see EpochPlace."""
        return os.listdir(self._root) if self._root.exists() else []

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Turn OSErrors into ours; see EpochPlace."""
        try:
            yield
        except OSError as error:
            raise PublishError(
                f"{error.filename or self.path} can't be written, read or removed:"
                f" {error.strerror}.",
                "Check that the directory is writable, and has space",
            ) from error

    def prepare(self, spark: SparkSession) -> None:
        """Refuse a path that Spark takes for another place than this process; see EpochPlace."""
        if local_path(spark, self.path) != self._root:
            raise FileSystemError(
                f"{self.path} is another place than {self._root} on a local disk by Spark's"
                " settings, such as fs.defaultFS.",
                f"Write file://{self._root} for the disk, or the other place with its scheme",
            )

    def require_commits(self) -> None:
        """Require hard links, by which the number of a commit is taken once; see EpochPlace."""
        staging = self._root / STAGING_FOLDER
        staging.mkdir(parents=True, exist_ok=True)
        probe, link = staging / uuid.uuid4().hex, staging / uuid.uuid4().hex
        probe.touch()
        try:
            link.hardlink_to(probe)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            raise FileSystemError(
                f"{self._root} is on a file system without hard links, by which of two processes"
                " one commits.",
                "Choose another disk",
            ) from error
        finally:
            link.unlink(missing_ok=True)
            probe.unlink(missing_ok=True)

    def staging(self, owner: str, kind: str) -> Path:
        """Return where an owner's files of one kind wait, such as those of a scan."""
        return self._root / STAGING_FOLDER / owner / kind

    def writer(
        self, owner: str, kind: str, file_format: str, partition_by: Sequence[str]
    ) -> FileWriter:
        """Return a writer that stages all files; see EpochPlace."""
        folder, columns = str(self.staging(owner, kind)), tuple(partition_by)
        return FileWriter(folder, {}, _PREFIX, file_format, columns, f".{file_format}")

    def move(self, owner: str, kind: str, file: WrittenFile, target: Path) -> None:
        """Move a task's file to another place on the disk.

        Raises:
            PublishError: it is not there, or not whole, or the disk refuses.
        """
        source = self.staging(owner, kind) / (file.staged or "")
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

    def content(self, owner: str, kind: str, file: WrittenFile) -> bytes:
        """Read a staged file; see EpochPlace."""
        path = self.staging(owner, kind) / (file.staged or "")
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise missing_files(f"{path}, a task's file, is not there.") from error

    def gather(
        self, owner: str, kind: str, written: Sequence[WrittenFile], name: str, form: Form
    ) -> list[CommittedFile]:
        """Move all files to a folder, which is staged; see EpochPlace."""
        staged = self.staging(owner, kind) / uuid.uuid4().hex
        staged.mkdir(parents=True)
        for number, file in enumerate(written):
            (staged / file.folder).mkdir(parents=True, exist_ok=True)
            self.move(owner, kind, file, staged / file_name("", file.folder, number, form))
        return [CommittedFile(name, staged=str(staged.relative_to(self._root)))]

    def give_name(self, file: CommittedFile) -> None:
        """Rename a folder; see EpochPlace."""
        staged, final = self._root / (file.staged or ""), self._root / file.name
        final.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.rename(staged, final)
        except OSError:
            # Another process has done it, or this one before.
            if not final.exists():
                if staged.exists():
                    raise
                raise missing_error(self.path, file) from None
            remove_path(staged)

    def has(self, name: str) -> bool:
        """Return whether there is such a folder; see EpochPlace."""
        return (self._root / name).exists()

    def staged(self) -> Sequence[str]:
        """Return the folders of all owners; see EpochPlace."""
        folder = self._root / STAGING_FOLDER
        return (
            [f"{STAGING_FOLDER}/{name}" for name in os.listdir(folder)] if folder.exists() else []
        )

    def remove(self, names: Sequence[str]) -> None:
        """Remove folders; see EpochPlace.

        Each is renamed first, so that no process gives its name to a folder removed in part.
        """
        for name in names:
            removed = self._root / STAGING_FOLDER / uuid.uuid4().hex
            with suppress(FileNotFoundError):
                (self._root / name).rename(removed)
                remove_path(removed)

    def forget(self, owner: str) -> None:
        """Remove the owner's folder; see EpochPlace."""
        remove_path(self._root / STAGING_FOLDER / owner)

    def discard(self, owner: str, kind: str, but: Collection[str]) -> None:
        """Remove all files in the owner's folder; see EpochPlace."""
        folder = self.staging(owner, kind)
        for path in folder.iterdir() if folder.exists() else ():
            if str(path.relative_to(self._root)) not in but:
                remove_path(path)

    def first_after(self, name: str | None) -> str | None:
        """Return the first of the folders' names that are later; see EpochPlace."""
        # Also after the name with a suffix, which the chunks of a scan have.
        after = "" if name is None else f"{name}0"
        later = (other for other in self._names() if other > after and parse_epoch_name(other))
        return min(later, default=None)

    def epochs(self) -> dict[str, StoredEpoch]:
        """Return the folders; see EpochPlace."""
        names = [(name, (self._root / name).stat().st_mtime_ns) for name in self._names()]
        self._stored = {key: self._stored.get(key) or self._stored_epoch(key[0]) for key in names}
        return {name: self._stored[name, time] for name, time in names}

    def _names(self) -> list[str]:
        return [name for name in self.names() if name.startswith(EPOCH_PREFIX)]

    def _stored_epoch(self, name: str) -> StoredEpoch:
        folder = self._root / name
        # The rename that gave the folder its name changed its ctime; nothing else does.
        epoch = StoredEpoch(changed_at=folder.stat().st_ctime)
        for path, folders, names in os.walk(folder):
            folders[:] = [below for below in folders if below[0] not in "._"]
            for file in (Path(path, below) for below in names if below[0] not in "._"):
                epoch.names.append(str(file.relative_to(self._root)))
                epoch.size += file.stat().st_size
        epoch.names.sort()
        return epoch

    def local_files(self, names: Sequence[str]) -> AbstractContextManager[list[Path]]:
        """Return the files themselves; see EpochPlace."""
        return nullcontext([self._root / name for name in names])

    @contextmanager
    def merging(self, owner: str) -> Iterator[Path]:
        """Make a folder below the owner's; see EpochPlace."""
        folder = self.staging(owner, COMPACTION) / uuid.uuid4().hex
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            remove_path(folder)

    def stage_merged(self, owner: str, merged: Path, name: str) -> CommittedFile:
        """Make the folder durable, and rename it; see EpochPlace."""
        for path, _, _ in os.walk(merged):
            sync(Path(path))
        # It is left there if the commit fails, which may have been made all the same.
        staged = self.staging(owner, COMPACTION) / uuid.uuid4().hex
        merged.rename(staged)
        return CommittedFile(name, staged=str(staged.relative_to(self._root)))

    def remove_epochs(self, epochs: Mapping[str, StoredEpoch]) -> None:
        """Remove folders, once their replacement is durable; see EpochPlace."""
        sync(self._root)
        for name in epochs:
            shutil.rmtree(self._root / name)
