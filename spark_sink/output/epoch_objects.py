"""How an epoch becomes visible in an object store: by a commit, without a rename.

A small epoch travels in its commit, and then is one object, which readers see whole or not at all.
The files of a larger one are staged, named by its commit, and copied to their names, one by one:
for that moment readers see a part of it, as they do until a line of the watermark log says that
the epoch is complete.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.commit_log import Commit, CommitLog, CommittedFile
from slackwater.spark_sink.output.epoch_directory import (
    STAGING_FOLDER,
    epoch_name,
    parse_epoch_name,
)
from slackwater.spark_sink.output.epoch_files import LatestEpoch
from slackwater.spark_sink.output.file_writer import WrittenFile, merge_files
from slackwater.spark_sink.output.object_store import (
    create,
    etag,
    names_at_top,
    names_below,
    remove,
    requests_to,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# In bytes: what a commit holds.
IN_COMMIT_MAX: Final = 1 << 20
_TRIES: Final = 20


class EpochObjects:
    """The epochs of one output, as one process publishes them.

    Args:
        store: the object store, from the output's URL on.
        path: the URL, for messages.
        owner: the process, by a name that no other has.
        file_format: of the files.
        suffix: of their names.
    """

    def __init__(
        self, store: ObjectStore, path: str, owner: str, file_format: str, suffix: str
    ) -> None:
        self._store = store
        self._path = path
        self._owner = owner
        self._format = file_format
        self._suffix = suffix
        self._log = CommitLog(store, owner)
        self._latest = LatestEpoch()

    def staging(self, epoch_id: int) -> str:
        """Return the folder below which an epoch's files are staged."""
        return f"{STAGING_FOLDER}/{self._owner}/{epoch_id}"

    def take_over(self, logged: Callable[[], datetime | None]) -> LatestEpoch:
        """Let no former owner publish any more; return the latest epoch.

        Args:
            logged: returns the watermark log's last low watermark; None without one.

        Raises:
            ObjectStoreError: the store refuses, or there is no such bucket.
            PublishError: it fails, or another process takes the pipeline over at the same time.
        """
        with requests_to(self._path, is_start=True):
            for _ in range(_TRIES):
                # Not what is staged later, by a process that takes the pipeline over from this one.
                staged = names_below(self._store, STAGING_FOLDER)
                last = self._log.last()
                if last is None:
                    latest = LatestEpoch(self._low_watermark_without_commits(logged()))
                else:
                    self._name_files(last)
                    latest = LatestEpoch(last.low_watermark, last.line)
                if self._log.take_over(last, latest.low_watermark, latest.line):
                    self._latest = latest
                    remove(self._store, staged)
                    return latest
        raise PublishError(f"{self._path}: other processes take the pipeline over all the time.")

    def publish(
        self,
        epoch_id: int,
        written: Sequence[WrittenFile],
        low_watermark: datetime,
        *,
        line: str | None = None,
        chunk: int | None = None,
    ) -> bool:
        """Make an epoch visible, and return False if it already was.

        Args:
            epoch_id: as it was staged.
            written: its files.
            low_watermark: the epoch's.
            line: the epoch's in the watermark log, to which it is added afterwards.
            chunk: the chunk's number in an initial scan; None for an epoch.

        Raises:
            PublishError: another process has taken the pipeline over, or the store fails.
        """
        name = epoch_name(low_watermark, chunk)
        with requests_to(self._path):
            if self._is_published(name, low_watermark, chunk):
                self._remove_below(self.staging(epoch_id))
                return False
            files = self._files(epoch_id, name, written)
            latest = LatestEpoch(low_watermark, line) if chunk is None else self._latest
            self._name_files(self._log.add(latest.low_watermark, latest.line, files))
            self._latest = latest
            # Attempts of tasks that failed may have staged more than was committed.
            self.discard(epoch_id, written)
            self._log.remove_old()
        return True

    def discard(self, epoch_id: int, written: Sequence[WrittenFile]) -> None:
        """Remove what of an epoch is staged; a small one has nothing staged."""
        if any(file.staged for file in written):
            with requests_to(self._path):
                self._remove_below(self.staging(epoch_id))

    def _is_published(self, name: str, low_watermark: datetime, chunk: int | None) -> bool:
        if chunk is not None:
            return bool(names_below(self._store, name))
        latest = self._latest.low_watermark
        return latest is not None and low_watermark <= latest

    def _files(
        self, epoch_id: int, name: str, written: Sequence[WrittenFile]
    ) -> list[CommittedFile]:
        """Return the files of a commit, and stage those that are too large for it."""
        if all(file.content is not None for file in written):
            merged = merge_files(written, self._format)
            if sum(len(content) for _, content in merged) <= IN_COMMIT_MAX:
                return [
                    CommittedFile(_file_name(name, folder, number, self._suffix), content=content)
                    for number, (folder, content) in enumerate(merged)
                ]
        files = []
        for number, file in enumerate(written):
            staged = file.staged
            if file.content is not None:
                staged = f"{self.staging(epoch_id)}/{uuid.uuid4().hex}"
                self._store.put(staged, file.content)
            final = _file_name(name, file.folder, number, self._suffix)
            files.append(CommittedFile(final, staged=staged))
        return files

    def _name_files(self, commit: Commit) -> None:
        """Give a commit's files their names, unless they have them."""
        for file in commit.files:
            if file.content is not None:
                create(self._store, file.name, file.content)
            elif file.staged is not None:
                self._copy(file.staged, file.name)
        remove(self._store, [file.staged for file in commit.files if file.staged])

    def _copy(self, staged: str, name: str) -> None:
        try:
            self._store.copy(staged, name)
        except FileNotFoundError:
            # Another process has done it, and removed the staged file.
            if etag(self._store, name) is None:
                raise PublishError(
                    f"{self._path}: {staged}, a committed file of {name}, is gone.",
                    "Restore the output, or continue after an earlier epoch",
                ) from None

    def _remove_below(self, folder: str) -> None:
        remove(self._store, names_below(self._store, folder))

    def _low_watermark_without_commits(self, logged: datetime | None) -> datetime | None:
        """Return the latest epoch's in an output of earlier versions, or in a new one.

        Earlier versions copied an epoch's files and then added a line to the log. If there is no
        line, only some of the files may be there.
        """
        epochs = {name: parse_epoch_name(name) for name in names_at_top(self._store)}
        for name, low_watermark in epochs.items():
            if logged is not None and low_watermark is not None and low_watermark > logged:
                self._remove_below(name)
        return logged or max(filter(None, epochs.values()), default=None)


def _file_name(epoch: str, folder: str, number: int, suffix: str) -> str:
    return "/".join(filter(None, (epoch, folder, f"part-{number:05d}.{suffix}")))
