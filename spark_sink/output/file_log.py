"""The publication of epochs in files: a commit, after which the files get their names.

In an object store the files of a large epoch appear one by one: for that moment readers see a part
of the epoch, and a line of the watermark log says when it is complete. On a disk an epoch is one
folder.
"""

import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from slackwater.spark_sink.errors import ObjectStoreError, PublishError, SinkError
from slackwater.spark_sink.output.commit_log import FOLDER, Commit, CommitLog, CommittedFile
from slackwater.spark_sink.output.epoch_files import LatestEpoch
from slackwater.spark_sink.output.epoch_names import epoch_name
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form, Shown
from slackwater.spark_sink.output.file_writer import FileWriter, WrittenFile

_TRIES: Final = 20
# The kinds of staged files: those of epochs, and of the chunks of a scan.
EPOCHS: Final = "epochs"
CHUNKS: Final = "chunks"


class FileLog:
    """The epochs of one output, as one process publishes them.

    Args:
        place: where they are staged and committed.
        form: of their files.
        shown: where readers see them; None for the place itself.
    """

    def __init__(self, place: EpochPlace, form: Form, shown: Shown | None = None) -> None:
        self._place = place
        self._shown = shown or place
        self._form = form
        # A new name after each take-over: earlier staged files can't be published any more.
        self.owner = uuid.uuid4().hex
        self._log = CommitLog(place.folder(FOLDER), self.owner)
        self._latest = LatestEpoch()
        # Committed, and not all of its files have their names.
        self._unnamed: Commit | None = None
        # Epochs are compacted in a thread of its own.
        self._lock = threading.Lock()

    def writer(self, kind: str, file_format: str, partition_by: Sequence[str]) -> FileWriter:
        """Return a writer of files for tasks.

        Args:
            kind: EPOCHS or CHUNKS.
            file_format, partition_by: see FileWriter.
        """
        return self._place.writer(self.owner, kind, file_format, partition_by)

    def take_over(self, logged: Callable[[], datetime | None]) -> LatestEpoch:
        """Let no former owner publish any more; return the latest epoch.

        Args:
            logged: returns the watermark log's last low watermark; None without one.

        Raises:
            ObjectStoreError: the output is not as commits and log say.
            PublishError: the place refuses or fails, or another process takes the pipeline over at
                the same time.
        """
        owner = uuid.uuid4().hex
        log = CommitLog(self._place.folder(FOLDER), owner)
        with self._lock, self._place.translating():
            for _ in range(_TRIES):
                # Not files staged later, by a process that takes the pipeline over from this one.
                staged = self._place.staged()
                last = log.last()
                if last is None:
                    latest = LatestEpoch(logged())
                else:
                    # Before it is removed: its owner may wake up and give it its name.
                    if not self._has_names(last, logged):
                        self._name_files(last)
                    latest = LatestEpoch(last.low_watermark, last.line)
                if log.take_over(last, latest.low_watermark, latest.line):
                    self.owner, self._log = owner, log
                    self._latest, self._unnamed = latest, None
                    self._place.remove(staged)
                    self._refuse_later_epochs()
                    return latest
        raise PublishError(
            f"{self._place.path}: other processes take the pipeline over all the time."
        )

    def publish(
        self,
        written: Sequence[WrittenFile],
        low_watermark: datetime,
        *,
        owner: str,
        line: str | None = None,
        chunk: int | None = None,
    ) -> bool:
        """Make an epoch visible, and return False if it already was.

        Args:
            written: its files.
            low_watermark: the epoch's.
            owner: the attribute, as it was when the epoch was staged.
            line: the epoch's in the watermark log, to which it is added afterwards.
            chunk: the chunk's number in an initial scan; None for an epoch.

        Raises:
            PublishError: the pipeline was taken over since the epoch was staged, by another process
                or by this one again; or the place fails.
        """
        name = epoch_name(low_watermark, chunk)
        kind = EPOCHS if chunk is None else CHUNKS
        with self._lock, self._place.translating():
            self._require_same(owner)
            log = self._log
            self._finish(log)
            if self._is_published(name, low_watermark, chunk):
                self._discard(kind, written)
                return False
            files = self._shown.gather(owner, kind, written, name, self._form)
            self._unnamed = self._commit(log, files, LatestEpoch(low_watermark, line), chunk)
            self._finish(log)
            # Attempts of tasks that failed may have staged more than was committed.
            self._discard(kind, written)
            log.remove_old()
        return True

    def is_published(self, low_watermark: datetime, chunk: int | None) -> bool:
        """Finish this process's last commit, and return whether an epoch or a chunk is visible.

        Args:
            low_watermark, chunk: see publish().

        Raises:
            ObjectStoreError, PublishError: see publish().
        """
        with self._lock, self._place.translating():
            self._finish(self._log)
            return self._is_published(epoch_name(low_watermark, chunk), low_watermark, chunk)

    def _require_same(self, owner: str) -> None:
        """Check that an owner's staged files are there: a successor removes them."""
        if owner != self.owner:
            raise PublishError("the pipeline was taken over since this was staged.")

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

    def replace(self, file: CommittedFile, owner: str) -> None:
        """Give a staged file a name by which it replaces epochs; see EpochCompaction.

        Only the pipeline's owner can. If a process dies meanwhile, its successor gives the name.

        Args:
            file: it may be a folder.
            owner: the attribute, as it was before the first byte was staged.

        Raises:
            PublishError: the pipeline was taken over since then, or the place fails.
        """
        with self._lock, self._place.translating():
            self._require_same(owner)
            self._finish(self._log)
            latest = self._latest
            self._unnamed = self._log.add(latest.low_watermark, latest.line, None, [file])
            self._finish(self._log)

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
        except SinkError:
            self._require_owner()
            raise
        if unnamed.is_chunk:
            log.add(self._latest.low_watermark, self._latest.line, None, ())
        self._place.remove([file.staged for file in unnamed.files if file.staged])
        self._unnamed = None

    def discard(self, kind: str, written: Sequence[WrittenFile]) -> None:
        """Remove the staged files of a kind; a small epoch may have none."""
        with self._lock, self._place.translating():
            self._discard(kind, written)

    def _discard(self, kind: str, written: Sequence[WrittenFile]) -> None:
        if any(file.staged for file in written):
            unnamed = self._unnamed.files if self._unnamed else ()
            committed = {file.staged for file in unnamed if file.staged}
            self._place.discard(self.owner, kind, committed)

    def _is_published(self, name: str, low_watermark: datetime, chunk: int | None) -> bool:
        if chunk is not None:
            return self._shown.has(name)
        latest = self._latest.low_watermark
        return latest is not None and low_watermark <= latest

    def _has_names(self, commit: Commit, logged: Callable[[], datetime | None]) -> bool:
        """Return whether all files of a commit had their names; a user may have removed some."""
        if not commit.files:
            return True
        if commit.named_by is None:
            return False
        line = logged()
        return line is not None and line >= commit.named_by

    def _name_files(self, commit: Commit) -> None:
        """Give a commit's files their names, unless they have them.

        Raises:
            ObjectStoreError: a file of an epoch, or of a chunk, is gone.
        """
        for file in commit.files:
            try:
                self._shown.give_name(file)
            except ObjectStoreError:
                # It would have replaced epochs, which are still there.
                if not commit.replaces_epochs:
                    raise

    def _require_owner(self) -> None:
        """Check, after an error, that no other process has taken the pipeline over."""
        last = self._log.last()
        if last is None or last.owner != self.owner:
            raise PublishError(f"{self._place.path}: another process took the pipeline over.")

    def _refuse_later_epochs(self) -> None:
        """Check that no epoch is later than the latest one, as in an output restored in parts.

        Raises:
            ObjectStoreError: there is one.
            PublishError: it is that of a process that has taken the pipeline over since.
        """
        latest = self._latest.low_watermark
        name = self._shown.first_after(None if latest is None else epoch_name(latest))
        if name is not None:
            self._require_owner()
            raise ObjectStoreError(
                f"{self._place.path} has {name}, which is later than the last epoch in _commits and"
                " _watermarks.",
                "They were restored as of an earlier time: restore them, or remove the epochs after"
                f" {latest and epoch_name(latest)}, which are then read again",
            )
