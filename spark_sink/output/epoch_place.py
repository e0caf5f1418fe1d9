"""Where epochs in files stand, as their log asks for it: a folder, on a disk or in a store."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile
from slackwater.spark_sink.output.small_files import SmallFiles

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# With what the names of epochs begin.
EPOCH_PREFIX: Final = "epoch="
# What is staged, besides epochs and chunks of a scan.
COMPACTION: Final = "compaction"


@dataclass(frozen=True, slots=True)
class Form:
    """How an output's files are written and called.

    Attributes:
        file_format: see FileWriter.
        suffix: of their names.
    """

    file_format: str
    suffix: str


@dataclass(slots=True)
class StoredEpoch:
    """The files of an epoch that readers see.

    Attributes:
        names: from the output on, in order.
        size: in bytes.
        changed_at: when the last of them got its name, as a Unix time.
    """

    names: list[str] = field(default_factory=list)
    size: int = 0
    changed_at: float = 0.0


class Shown(Protocol):
    """Where readers see epochs: as files in the place where they are staged, or as rows."""

    def gather(
        self, owner: str, kind: str, written: Sequence[WrittenFile], name: str, form: Form
    ) -> list[CommittedFile]:
        """Return the files of a commit, staged unless they are in it.

        Args:
            owner, kind: see writer().
            written: by tasks.
            name: the epoch's.
            form: of the files.
        """

    def give_name(self, file: CommittedFile) -> None:
        """Give a committed file the name that readers see, unless it has it.

        Raises:
            ObjectStoreError: the staged file is gone.
        """

    def has(self, name: str) -> bool:
        """Return whether there is an epoch of this name."""

    def first_after(self, name: str | None) -> str | None:
        """Return the name of an epoch, and no chunk, after another one, or of any; None without."""


class EpochPlace(Shown, Protocol):
    """The place of one output: of epochs in files, or of what waits beside tables and topics."""

    path: str

    def folder(self, name: str) -> SmallFiles:
        """Return a folder of small files in it."""

    def names(self) -> list[str]:
        """Return the names of the files and folders that lie directly in it."""

    @property
    def is_one_object(self) -> bool:
        """Whether what replaces epochs has to be one object, to appear at one moment."""

    def translating(self) -> AbstractContextManager[None]:
        """Turn the errors of the place into ours."""

    def prepare(self, spark: SparkSession) -> None:
        """See whether the place can be used.

        Raises:
            FileSystemError: Spark takes the path for another place.
            ObjectStoreError: the store refuses, or there is no such bucket.
        """

    def require_commits(self) -> None:
        """See whether epochs can be committed here.

        Raises:
            FileSystemError: they can't.
        """

    def writer(
        self, owner: str, kind: str, file_format: str, partition_by: Sequence[str]
    ) -> FileWriter:
        """Return what writes files in tasks, and stages those that have to be.

        Args:
            owner: the process, by a name that no other has.
            kind: what is staged, such as epochs.
            file_format, partition_by: see FileWriter.
        """

    def content(self, owner: str, kind: str, file: WrittenFile) -> bytes:
        """Return the content of what a task has written.

        Raises:
            PublishError: it is gone.
        """

    def staged(self) -> Sequence[str]:
        """Return the names of what is staged, by any process."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove files or folders, of which some may be gone."""

    def discard(self, owner: str, kind: str, but: Collection[str]) -> None:
        """Remove what a process has staged of a kind, but for these names."""

    def forget(self, owner: str) -> None:
        """Remove all that a process has staged, which stages no more."""

    def epochs(self) -> dict[str, StoredEpoch]:
        """Return the epochs by their names."""

    def local_files(self, names: Sequence[str]) -> AbstractContextManager[list[Path]]:
        """Have files on a disk, as copies for the time if they are elsewhere.

        Raises:
            PublishError: one was removed meanwhile.
        """

    def merging(self, owner: str) -> AbstractContextManager[Path]:
        """Make a folder in which epochs are merged; what is not staged is removed at the end."""

    def stage_merged(self, owner: str, merged: Path, name: str) -> CommittedFile:
        """Stage what was merged in such a folder, durably, to replace epochs by a name."""

    def remove_epochs(self, epochs: Mapping[str, StoredEpoch]) -> None:
        """Remove epochs, by their names."""


def gone(path: str, file: CommittedFile) -> ObjectStoreError:
    """Return the error for a committed file that is not there any more, under neither name."""
    return ObjectStoreError(
        f"{path}: {file.staged}, which was committed as {file.name}, is gone.",
        "Restore it. If the epoch is not wanted any more, put anything in its place",
    )


def file_name(epoch: str, folder: str, number: int, form: Form) -> str:
    """Return the name of an epoch's file, in a folder of it that may be empty."""
    return "/".join(filter(None, (epoch, folder, f"part-{number:05d}.{form.suffix}")))
