"""Epochs in an object store, which has no rename.

A small epoch travels in its commit, and then is one object, which readers see whole or not at all;
with folders in it, it is one object for each. The files of a larger one are staged, and copied to
their names one by one.
"""

from __future__ import annotations

import tempfile
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PublishError
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
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile, merge_files
from slackwater.spark_sink.output.object_store import (
    ObjectFiles,
    create,
    etag,
    names_at_top,
    names_below,
    open_object_store,
    read,
    read_together,
    remove,
    remove_together,
    requests_to,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore
    from pyspark.sql import SparkSession

# Up to so many objects are removed one after the other.
_FEW: Final = 16
# In bytes: a commit in an object store holds no more.
IN_COMMIT_MAX: Final = 1 << 20
# Of files that are merged to see whether they fit: schemas and footers are then there once.
_MERGED_MAX: Final = 8 * IN_COMMIT_MAX


class Bucket:
    """A folder in an object store; see EpochPlace.

    Args:
        path: its URL.
        options: see open_object_store().
        store: opened; None to open it.
    """

    is_one_object = True

    def __init__(
        self, path: str, options: Mapping[str, str], store: ObjectStore | None = None
    ) -> None:
        self.path = path
        self._options = dict(options)
        self._store = store or open_object_store(path, options)
        self._is_reached = False

    def folder(self, name: str) -> ObjectFiles:
        """Return the objects below a name; see EpochPlace."""
        return ObjectFiles(self.path, self._options, name, self._store)

    def names(self) -> list[str]:
        """Return the names of objects and folders; see EpochPlace."""
        return names_at_top(self._store)

    def translating(self) -> AbstractContextManager[None]:
        """Turn the errors of the store's client into ours; see EpochPlace."""
        return requests_to(self.path)

    def prepare(self, spark: SparkSession) -> None:  # noqa: ARG002
        """Ask the store for a list, once; see EpochPlace."""
        if not self._is_reached:
            with requests_to(self.path, is_start=True, purpose="listing the objects"):
                next(iter(self._store.list(f"{STAGING_FOLDER}/")), None)
            self._is_reached = True

    def require_commits(self) -> None:
        """Do nothing: `check` tests conditional requests; see EpochPlace."""

    def writer(
        self, owner: str, kind: str, file_format: str, partition_by: Sequence[str]
    ) -> FileWriter:
        """Return a writer that stages large files; see EpochPlace."""
        prefix = f"{_staging(owner, kind)}/"
        return FileWriter(self.path, self._options, prefix, file_format, tuple(partition_by))

    def content(self, owner: str, kind: str, file: WrittenFile) -> bytes:  # noqa: ARG002
        """Return the content of a file, or of its object; see EpochPlace."""
        if file.content is not None:
            return file.content
        content = read(self._store, file.staged or "")
        if content is None:
            raise PublishError(
                f"{self.path}/{file.staged} is gone.",
                "Another process may have taken the pipeline over; the epoch is read again",
            )
        return content

    def gather(
        self, owner: str, kind: str, written: Sequence[WrittenFile], name: str, form: Form
    ) -> list[CommittedFile]:
        """Return small files with their content, and stage those of large epochs."""
        size = sum(len(file.content or b"") for file in written)
        if size <= _MERGED_MAX and all(file.content is not None for file in written):
            merged = merge_files(written, form.file_format)
            if sum(len(content) for _, content in merged) <= IN_COMMIT_MAX:
                return [
                    CommittedFile(file_name(name, folder, number, form), content=content)
                    for number, (folder, content) in enumerate(merged)
                ]
        files = []
        for number, file in enumerate(written):
            staged = file.staged
            if file.content is not None:
                staged = f"{_staging(owner, kind)}/{uuid.uuid4().hex}"
                self._store.put(staged, file.content)
            final = file_name(name, file.folder, number, form)
            files.append(CommittedFile(final, staged=staged))
        return files

    def give_name(self, file: CommittedFile) -> None:
        """Create an object, or copy it; see EpochPlace."""
        if file.content is not None:
            created = create(self._store, file.name, file.content)
            if created is None and etag(self._store, file.name) is None:
                raise PublishError(f"{self.path}: {file.name} was not created.")
        elif file.staged is not None:
            try:
                self._store.copy(file.staged, file.name)
            except FileNotFoundError:
                # Another process has done it, and removed the staged file.
                if etag(self._store, file.name) is None:
                    raise missing_error(self.path, file) from None

    def has(self, name: str) -> bool:
        """Return whether there is an object below the name; see EpochPlace."""
        return bool(names_below(self._store, name))

    def staged(self) -> Sequence[str]:
        """Return the objects that are staged; see EpochPlace."""
        return names_below(self._store, STAGING_FOLDER)

    def remove(self, names: Sequence[str]) -> None:
        """Remove objects; see EpochPlace."""
        if len(names) > _FEW:
            remove_together(self._store, names)
        else:
            remove(self._store, names)

    def discard(self, owner: str, kind: str, but: Collection[str]) -> None:
        """Remove all files below the owner's folder; see EpochPlace."""
        names = names_below(self._store, _staging(owner, kind))
        self.remove([name for name in names if name not in but])

    def forget(self, owner: str) -> None:
        """Remove all files below the owner's folder; see EpochPlace."""
        self.remove(names_below(self._store, f"{STAGING_FOLDER}/{owner}"))

    def first_after(self, name: str | None) -> str | None:
        """Return the epoch of the first object after a name; see EpochPlace."""
        # After all files of an epoch, whose folder's name is a part of theirs.
        after = EPOCH_PREFIX if name is None else f"{name}0"
        folders = (
            item["path"].partition("/")[0]
            for page in self._store.list(offset=after)
            for item in page
        )
        return next(filter(parse_epoch_name, folders), None)

    def epochs(self) -> dict[str, StoredEpoch]:
        """Return the objects of each epoch; see EpochPlace."""
        epochs: defaultdict[str, StoredEpoch] = defaultdict(StoredEpoch)
        for page in self._store.list(offset=EPOCH_PREFIX):
            for item in page:
                epoch = epochs[item["path"].partition("/")[0]]
                epoch.names.append(item["path"])
                epoch.size += item["size"]
                changed_at = item["last_modified"].timestamp()
                epoch.changed_at = max(epoch.changed_at, changed_at)
        for epoch in epochs.values():
            epoch.names.sort()
        return dict(epochs)

    @contextmanager
    def local_files(self, names: Sequence[str]) -> Iterator[list[Path]]:
        """Make copies; see EpochPlace."""
        with _temporary_folder() as folder:
            copies = []
            for name, content in zip(names, read_together(self._store, names), strict=True):
                if content is None:
                    raise PublishError(f"{self.path}: {name} was removed meanwhile.")
                copy = folder / name
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(content)
                copies.append(copy)
            yield copies

    def merging(self, owner: str) -> AbstractContextManager[Path]:  # noqa: ARG002
        """Make a folder for temporary files; see EpochPlace."""
        return _temporary_folder()

    def stage_merged(self, owner: str, merged: Path, name: str) -> CommittedFile:
        """Upload the only file; see EpochPlace."""
        [file] = merged.iterdir()
        staged = f"{_staging(owner, COMPACTION)}/{uuid.uuid4().hex}"
        self._store.put(staged, file)
        return CommittedFile(f"{name}/{file.name}", staged=staged)

    def remove_epochs(self, epochs: Mapping[str, StoredEpoch]) -> None:
        """Remove the objects; see EpochPlace."""
        remove_together(self._store, [name for epoch in epochs.values() for name in epoch.names])


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        yield Path(folder)


def _staging(owner: str, kind: str) -> str:
    return f"{STAGING_FOLDER}/{owner}/{kind}"
