"""How an epoch becomes visible in an object store: by a commit, without a rename.

A small epoch travels in its commit, and then is one object, which readers see whole or not at all;
with folders in it, it is one object for each. The files of a larger one are staged, named by its
commit, and copied to their names. Several objects appear one by one: for that moment readers see a
part of the epoch, and a line of the watermark log says when it is complete.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
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
    names_below,
    remove,
    requests_to,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

# In bytes: what a commit holds.
IN_COMMIT_MAX: Final = 1 << 20
# Of files that are merged to see whether they fit: schemas and footers are then there once.
_MERGED_MAX: Final = 8 * IN_COMMIT_MAX
_TRIES: Final = 20


class EpochObjects:
    """The epochs of one output, as one process publishes them.

    Args:
        store: the object store, from the output's URL on.
        path: the URL, for messages.
        file_format: of the files.
        suffix: of their names.
    """

    def __init__(self, store: ObjectStore, path: str, file_format: str, suffix: str) -> None:
        self._store = store
        self._path = path
        # Another one after each take-over: what was staged before can't be published any more.
        self.owner = uuid.uuid4().hex
        self._format = file_format
        self._suffix = suffix
        self._log = CommitLog(store, self.owner)
        self._latest = LatestEpoch()
        # Committed, and not all of its files have their names.
        self._unnamed: Commit | None = None
        # Epochs are compacted in a thread of its own.
        self._lock = threading.Lock()

    def staging(self, epoch_id: int) -> str:
        """Return the folder below which an epoch's files are staged."""
        return f"{STAGING_FOLDER}/{self.owner}/{epoch_id}"

    @property
    def staging_of_tasks(self) -> str:
        """The folder below which tasks stage files that are not yet known to be an epoch's."""
        return f"{STAGING_FOLDER}/{self.owner}/tasks"

    def take_over(self, logged: Callable[[], datetime | None]) -> LatestEpoch:
        """Let no former owner publish any more; return the latest epoch.

        Args:
            logged: returns the watermark log's last low watermark; None without one.

        Raises:
            ObjectStoreError: the output is not as commits and log say.
            PublishError: the store refuses or fails, or another process takes the pipeline over at
                the same time.
        """
        owner = uuid.uuid4().hex
        log = CommitLog(self._store, owner)
        with self._lock, requests_to(self._path):
            for _ in range(_TRIES):
                # Not what is staged later, by a process that takes the pipeline over from this one.
                staged = names_below(self._store, STAGING_FOLDER)
                last = log.last()
                if last is None:
                    # New, or written by an earlier version.
                    latest = LatestEpoch(logged())
                else:
                    if not self._has_names(last, logged):
                        self._name_files(last)
                    latest = LatestEpoch(last.low_watermark, last.line)
                if log.take_over(last, latest.low_watermark, latest.line):
                    self.owner, self._log = owner, log
                    self._latest, self._unnamed = latest, None
                    remove(self._store, staged)
                    self._refuse_later_epochs()
                    return latest
        raise PublishError(f"{self._path}: other processes take the pipeline over all the time.")

    def publish(
        self,
        epoch_id: int,
        written: Sequence[WrittenFile],
        low_watermark: datetime,
        *,
        owner: str,
        line: str | None = None,
        chunk: int | None = None,
    ) -> bool:
        """Make an epoch visible, and return False if it already was.

        Args:
            epoch_id: as it was staged.
            written: its files.
            low_watermark: the epoch's.
            owner: the attribute, as it was when the epoch was staged.
            line: the epoch's in the watermark log, to which it is added afterwards.
            chunk: the chunk's number in an initial scan; None for an epoch.

        Raises:
            PublishError: the pipeline was taken over since the epoch was staged, by another process
                or by this one again; or the store fails.
        """
        name = epoch_name(low_watermark, chunk)
        with self._lock, requests_to(self._path):
            # Who takes over removes what is staged: it must not be committed after that.
            if owner != self.owner:
                raise PublishError("the pipeline was taken over since this epoch was staged.")
            log = self._log
            self._finish(log)
            if self._is_published(name, low_watermark, chunk):
                self.discard(epoch_id, written)
                return False
            files = self._files(epoch_id, name, written)
            self._unnamed = self._commit(log, files, LatestEpoch(low_watermark, line), chunk)
            self._finish(log)
            # Attempts of tasks that failed may have staged more than was committed.
            self.discard(epoch_id, written)
            log.remove_old()
        return True

    def _commit(
        self,
        log: CommitLog,
        files: Sequence[CommittedFile],
        epoch: LatestEpoch,
        chunk: int | None,
    ) -> Commit:
        """Add the commit of an epoch, or of a chunk."""
        if chunk is not None:
            latest = self._latest
            return log.add(latest.low_watermark, latest.line, None, files, is_chunk=True)
        commit = log.add(epoch.low_watermark, epoch.line, epoch.low_watermark, files)
        self._latest = epoch
        return commit

    def replace(self, name: str, staged: str) -> None:
        """Give a staged file a name by which it replaces epochs; see ObjectCompaction.

        Only the pipeline's owner can. A process that dies meanwhile leaves the epochs as they were.

        Raises:
            PublishError: another process has taken the pipeline over, or the store fails.
        """
        with self._lock, requests_to(self._path):
            self._finish(self._log)
            file = CommittedFile(name, staged=staged)
            self._log.add(self._latest.low_watermark, self._latest.line, None, [file])
            try:
                self._store.copy(staged, name)
            except FileNotFoundError:
                # A successor has removed what was staged.
                raise PublishError("another process has taken the pipeline over.") from None
            remove(self._store, [staged])

    def _finish(self, log: CommitLog) -> None:
        """Give the files of this process's last commit their names, if a request failed before."""
        adopted = log.adopt()
        if adopted is not None:
            self._unnamed = adopted
            self._latest = LatestEpoch(adopted.low_watermark, adopted.line)
        unnamed = self._unnamed
        if unnamed is None:
            return
        try:
            self._name_files(unnamed)
        except ObjectStoreError:
            self._require_owner()
            raise
        if unnamed.is_chunk:
            log.add(self._latest.low_watermark, self._latest.line, None, ())
        remove(self._store, [file.staged for file in unnamed.files if file.staged])
        self._unnamed = None

    def discard(self, epoch_id: int, written: Sequence[WrittenFile]) -> None:
        """Remove what of an epoch is staged; a small one has nothing staged."""
        if any(file.staged for file in written):
            unnamed = self._unnamed.files if self._unnamed else ()
            committed = {file.staged for file in unnamed}
            with requests_to(self._path):
                for folder in (self.staging(epoch_id), self.staging_of_tasks):
                    names = names_below(self._store, folder)
                    remove(self._store, [name for name in names if name not in committed])

    def _is_published(self, name: str, low_watermark: datetime, chunk: int | None) -> bool:
        if chunk is not None:
            return bool(names_below(self._store, name))
        latest = self._latest.low_watermark
        return latest is not None and low_watermark <= latest

    def _files(
        self, epoch_id: int, name: str, written: Sequence[WrittenFile]
    ) -> list[CommittedFile]:
        """Return the files of a commit, and stage those that are too large for it."""
        size = sum(len(file.content or b"") for file in written)
        is_small = size <= _MERGED_MAX and all(file.content is not None for file in written)
        if is_small:
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

    def _has_names(self, commit: Commit, logged: Callable[[], datetime | None]) -> bool:
        """Return whether all files of a commit had their names; a user may have removed some."""
        if not commit.files:
            return True
        if commit.is_chunk:
            return False
        if commit.named_by is None:
            return True
        line = logged()
        return line is not None and line >= commit.named_by

    def _name_files(self, commit: Commit) -> None:
        """Give a commit's files their names, unless they have them."""
        for file in commit.files:
            if file.content is not None:
                created = create(self._store, file.name, file.content)
                if created is None and etag(self._store, file.name) is None:
                    raise PublishError(f"{self._path}: {file.name} was not created.")
            elif file.staged is not None:
                self._copy(file.staged, file.name)

    def _copy(self, staged: str, name: str) -> None:
        try:
            self._store.copy(staged, name)
        except FileNotFoundError:
            # Another process has done it, and removed the staged file.
            if etag(self._store, name) is None:
                raise ObjectStoreError(
                    f"{self._path}: {staged}, a committed file of {name}, is gone.",
                    "Restore it. If the epoch is not wanted any more, copy any object to that name",
                ) from None

    def _require_owner(self) -> None:
        """Check, where something is amiss, that no other process has taken the pipeline over."""
        last = self._log.last()
        if last is None or last.owner != self.owner:
            raise PublishError(f"{self._path}: another process took the pipeline over.")

    def _refuse_later_epochs(self) -> None:
        """Check that no epoch is later than the latest one, as in a bucket restored in parts.

        Raises:
            ObjectStoreError: there is one.
            PublishError: it is that of a process that has taken the pipeline over since.
        """
        latest = self._latest.low_watermark
        # After all files of the latest epoch, whose folder's name is a part of theirs.
        after = "epoch=" if latest is None else f"{epoch_name(latest)}0"
        for item in next(iter(self._store.list(offset=after)), []):
            time = parse_epoch_name(item["path"].partition("/")[0])
            if time is not None and (latest is None or time > latest):
                self._require_owner()
                raise ObjectStoreError(
                    f"{self._path} has {item['path']}, which is later than the last epoch in"
                    " _commits and _watermarks.",
                    "They were restored, or an earlier version was killed: restore them, or remove"
                    f" the epochs after {latest and epoch_name(latest)}, which are then read again",
                )


def _file_name(epoch: str, folder: str, number: int, suffix: str) -> str:
    return "/".join(filter(None, (epoch, folder, f"part-{number:05d}.{suffix}")))
