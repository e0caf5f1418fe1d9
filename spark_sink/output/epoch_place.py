"""The place of epochs in files, as their log needs it: a folder, on a disk or in a store."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.commit_log import CommittedFile
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile
from slackwater.spark_sink.output.small_files import SmallFiles

# The beginning of the names of epochs.
EPOCH_PREFIX: Final = "epoch="
# The kind of staged files that replace epochs.
COMPACTION: Final = "compaction"


@dataclass(frozen=True, slots=True)
class Form:
    """The format and the suffix of an output's files.

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
        """Return the name of an epoch, not a chunk, after a name, or of any epoch; None without."""


class EpochPlace(Shown, Protocol):
    """The place of one output: of epochs in files, or of those staged beside tables and topics."""

    path: str

    def folder(self, name: str) -> SmallFiles:
        """Return a folder of small files in it."""

    def names(self) -> list[str]:
        """Return the names of the files and folders that lie directly in it."""

    @property
    def is_one_object(self) -> bool:
        """Whether a file that replaces epochs has to be one object, to appear at one moment."""

    def translating(self) -> AbstractContextManager[None]:
        """Turn the errors of the place into ours."""

    def prepare(self, spark: "SparkSession") -> None:
        """Check that the place can be used.

        Raises:
            FileSystemError: Spark takes the path for another place.
            ObjectStoreError: the store refuses, or there is no such bucket.
        """

    def require_commits(self) -> None:
        """Check that epochs can be committed here.

        Raises:
            FileSystemError: they can't.
        """

    def writer(
        self, owner: str, kind: str, file_format: str, partition_by: Sequence[str]
    ) -> FileWriter:
        """Return a writer of files for tasks, which stages those that have to be.

        Args:
            owner: the process, by a name that no other has.
            kind: of the staged files, such as epochs.
            file_format, partition_by: see FileWriter.
        """

    def content(self, owner: str, kind: str, file: WrittenFile) -> bytes:
        """Return the content of a file that a task has written.

        Raises:
            PublishError: it is gone.
        """

    def staged(self) -> Sequence[str]:
        """Return the names of staged files, of any process."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove files or folders, of which some may be gone."""

    def discard(self, owner: str, kind: str, but: Collection[str]) -> None:
        """Remove a process's staged files of a kind, except these names."""

    def forget(self, owner: str) -> None:
        """Remove all staged files of a process, which stages no more."""

    def epochs(self) -> dict[str, StoredEpoch]:
        """Return the epochs by their names."""

    def local_files(self, names: Sequence[str]) -> AbstractContextManager[list[Path]]:
        """Provide files on a disk, as temporary copies if they are elsewhere.

        Raises:
            PublishError: one was removed meanwhile.
        """

    def merging(self, owner: str) -> AbstractContextManager[Path]:
        """Make a folder in which epochs are merged; files not staged are removed at the end."""

    def stage_merged(self, owner: str, merged: Path, name: str) -> CommittedFile:
        """Stage the merged files of such a folder durably, to replace epochs under a name."""

    def remove_epochs(self, epochs: Mapping[str, StoredEpoch]) -> None:
        """Remove epochs, by their names."""


def missing_error(path: str, file: CommittedFile) -> ObjectStoreError:
    """Return the error for a committed file that is missing under both names."""
    return ObjectStoreError(
        f"{path}: {file.staged}, which was committed as {file.name}, is gone.",
        "Restore it. If the epoch is not wanted any more, put anything in its place",
    )


def file_name(epoch: str, folder: str, number: int, form: Form) -> str:
    """Return the name of an epoch's file, in a folder of it that may be empty."""
    return "/".join(filter(None, (epoch, folder, f"part-{number:05d}.{form.suffix}")))
