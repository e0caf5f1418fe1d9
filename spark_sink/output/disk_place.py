"""Epochs on a local disk: each is a folder, which is staged and appears by one rename."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import missing_files
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
from slackwater.spark_sink.output.small_files import LocalFiles
from slackwater.spark_sink.output.staging_folder import (
    StagingFolder,
    disk_errors,
    remove_path,
    require_links,
    require_this_disk,
    staged_by_all,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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

    def translating(self) -> AbstractContextManager[None]:
        """Turn OSErrors into ours; see EpochPlace."""
        return disk_errors(self.path)

    def prepare(self, spark: SparkSession) -> None:
        """Require that Spark means the same disk; see EpochPlace."""
        require_this_disk(spark, self._root, self.path)

    def require_commits(self) -> None:
        """Require hard links; see EpochPlace."""
        require_links(self._root)

    def writer(
        self, owner: str, kind: str, file_format: str, partition_by: Sequence[str]
    ) -> FileWriter:
        """Return a writer that stages all files; see EpochPlace."""
        return StagingFolder(self._root, owner).writer(kind, file_format, partition_by)

    def content(self, owner: str, kind: str, file: WrittenFile) -> bytes:
        """Read a staged file; see EpochPlace."""
        path = self._staged_path(owner, kind, file)
        try:
            return path.read_bytes()
        except FileNotFoundError as error:
            raise missing_files(f"{path}, a task's file, is not there.") from error

    def _staged_path(self, owner: str, kind: str, file: WrittenFile) -> Path:
        return StagingFolder(self._root, owner).path(kind) / (file.staged or "")

    def gather(
        self, owner: str, kind: str, written: Sequence[WrittenFile], name: str, form: Form
    ) -> list[CommittedFile]:
        """Move all files to a folder, which is staged; see EpochPlace."""
        staging = StagingFolder(self._root, owner)
        staged = staging.path(kind) / uuid.uuid4().hex
        staged.mkdir(parents=True)
        for number, file in enumerate(written):
            (staged / file.folder).mkdir(parents=True, exist_ok=True)
            staging.move(kind, file, staged / file_name("", file.folder, number, form))
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
        return [str(folder.relative_to(self._root)) for folder in staged_by_all(self._root)]

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
        StagingFolder(self._root, owner).discard(kind, {self._root / name for name in but})

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
        folder = StagingFolder(self._root, owner).path(COMPACTION) / uuid.uuid4().hex
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
        staged = StagingFolder(self._root, owner).path(COMPACTION) / uuid.uuid4().hex
        merged.rename(staged)
        return CommittedFile(name, staged=str(staged.relative_to(self._root)))

    def remove_epochs(self, epochs: Mapping[str, StoredEpoch]) -> None:
        """Remove folders, once their replacement is durable; see EpochPlace."""
        sync(self._root)
        for name in epochs:
            shutil.rmtree(self._root / name)
