"""Checkpoints of a Delta table's log on a local disk, by delta-rs, beside the epochs.

Spark's takes longer than an epoch. delta-rs writes one to a file that no reader looks at and
renames it, so that it appears whole.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deltalake import DeltaTable

_log = logging.getLogger(__name__)

_CLEANUP: Final = "delta.enableExpiredLogCleanup"
# The log's folder is listed for it.
_CLEANED_EVERY_S: Final = 3_600.0
_COMMIT: Final = re.compile(r"(\d{20})\.json")
# Spark's checksum of a version, and Hadoop's of a file.
_CHECKSUM: Final = re.compile(r"\.?(\d{20})\..*crc")


class Checkpoints:
    """Writes the checkpoints of one sink's tables, one at a time, in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failed: set[str] = set()
        self._cleaned_s: dict[str, float] = {}

    def are_written(self, folder: str) -> bool:
        """Return whether no checkpoint of the table in a folder has failed."""
        return folder not in self._failed

    def begin(self, folder: str, version: int) -> None:
        """Begin to write a checkpoint of a version, unless another one is being written.

        Args:
            folder: the table's, on a local disk.
            version: one that this process has committed: nobody else writes its checkpoint.
        """
        if self._thread is None or not self._thread.is_alive():
            # Not a daemon: the interpreter must not end while delta-rs is at work.
            self._thread = threading.Thread(
                target=self._write, args=(folder, version), name="checkpoint"
            )
            self._thread.start()

    def wait(self) -> None:
        """Wait until a checkpoint that has begun is written."""
        if self._thread is not None:
            self._thread.join()

    def _write(self, folder: str, version: int) -> None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            forget_checksum(folder)
            table = DeltaTable(folder, version=version)
            table.create_checkpoint()
            now_s = time.monotonic()
            if now_s - self._cleaned_s.get(folder, -_CLEANED_EVERY_S) >= _CLEANED_EVERY_S:
                self._cleaned_s[folder] = now_s
                clean_up(table, folder)
        except (DeltaError, OSError) as error:
            self._failed.add(folder)
            _log.warning("Spark writes the checkpoints of %s from now on: %s", folder, error)


def forget_checksum(folder: str) -> None:
    """Remove the checksum that Hadoop has of the log's _last_checkpoint, which delta-rs replaces.

    With the checksum of another file, Spark takes it for damaged and waits three seconds.

    Args:
        folder: the table's, on a local disk.
    """
    Path(folder, "_delta_log", "._last_checkpoint.crc").unlink(missing_ok=True)


def clean_up(table: DeltaTable, folder: str) -> None:
    """Remove commits that are older than the table keeps them, and all checksums of them.

    As after a checkpoint of Spark's, delta.logRetentionDuration says how long that is.

    Args:
        table: as it was loaded for a checkpoint.
        folder: the table's, on a local disk.

    Raises:
        DeltaError, OSError: not all could be removed.
    """
    if table.metadata().configuration.get(_CLEANUP, "true") != "true":
        return
    table.cleanup_metadata()
    log = Path(folder, "_delta_log")
    names = [path.name for path in log.iterdir()]
    commits = [int(match[1]) for match in map(_COMMIT.fullmatch, names) if match]
    for match in map(_CHECKSUM.fullmatch, names):
        if match and int(match[1]) < min(commits, default=0):
            (log / match[0]).unlink(missing_ok=True)
