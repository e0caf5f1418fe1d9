"""Removal of a Delta table's old versions without a job of Spark's.

VACUUM looks at the age of files alone: with less than a week it may remove one that is about to be
committed.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final
from urllib.parse import unquote

from slackwater.spark_sink.output.compaction_groups import is_inside
from slackwater.spark_sink.output.delta.deletion_vectors import file_of
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.delta.log_files import (
    actions_of,
    checkpoint_files,
    commit_name,
    commit_versions,
    files_in,
    log_files,
)
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.output.small_files import SmallFiles
from slackwater.timestamp import seconds_to_ms

_OF_VERSION: Final = re.compile(r"\d{20}\..+")


@dataclass(frozen=True, slots=True)
class Commit:
    """The files that a commit adds and removes.

    Attributes:
        committed_ms: since the Unix epoch, by the clock of its writer; None if it does not say.
        added, removed: names relative to the table, as in the log.
        changes: those of files for readers of changes, likewise.
    """

    committed_ms: int | None
    added: frozenset[str]
    removed: frozenset[str]
    changes: frozenset[str] = frozenset()


def expire(path: str, options: Mapping[str, str], keep_s: float) -> None:
    """Remove a table's versions that were replaced some time ago.

    Args:
        path, options: see log_files().
        keep_s: the seconds for which a version that was replaced can still be read.

    Raises:
        PublishError: the disk or the store refuses or fails.
    """
    remove_old_versions(
        log_files(path, options),
        files_in(path, options, ""),
        seconds_to_ms(time.time() - keep_s),
        lambda first: _files_at(path, options, first) | _files_at(path, options),
        # Of a table to which Spark has written.
        has_checksums=not is_object_store(path),
    )


def _files_at(path: str, options: Mapping[str, str], version: int | None = None) -> set[str]:
    """Return the names of the files that a table has, without their folders.

    Args:
        path, options: see log_files().
        version: None for now.

    Raises:
        PublishError: the store fails.
    """
    snapshot = DeltaLog(path, options).load(version)
    added = [] if snapshot is None else snapshot.files.values()
    names = {name.rpartition("/")[2] for action in added for name in _files_of(action)}
    # The name as it is, too: one of a table's files must not be taken for another.
    return names | {unquote(name) for name in names}


def remove_old_versions(
    log: SmallFiles,
    data: SmallFiles,
    replaced_before_ms: int,
    needed: Callable[[int], Collection[str]],
    *,
    has_checksums: bool = False,
) -> None:
    """Remove versions that were replaced before a time, and the files that only they have.

    The versions from a checkpoint on stay, which was itself made before that time. No commit is
    read that stays, except those of a few checkpoints.

    Args:
        log: the folder of the table's log.
        data: the table's.
        replaced_before_ms: since the Unix epoch.
        needed: returns the names of the files that the table has now, and those that it had at a
            version, the first that stays; without their folders. Several data files may share one
            file of deletion vectors.
        has_checksums: Hadoop writes a file of checksums beside each.
    """
    names = log.names()
    versions = commit_versions(names)
    checkpoints = sorted(checkpoint_files(names))

    def committed_ms(version: int) -> int | None:
        return _read(log, version).committed_ms if version in versions else None

    first = first_to_keep(checkpoints, committed_ms, replaced_before_ms)
    if first is None:
        return
    old = [_read(log, version) for version in old_versions(versions, checkpoints, first)]
    if removed := files_to_remove(old):
        # A file that was restored since is the table's again.
        there = set(needed(first))
        unneeded = [name for name in removed if name.rpartition("/")[2] not in there]
        data.remove(_with_checksums(unneeded) if has_checksums else unneeded)
    # Ascending, so that what stays is without a gap if this is interrupted.
    of_versions = sorted(name for name in names if _OF_VERSION.fullmatch(name))
    below = takewhile(lambda name: int(name.partition(".")[0]) < first, of_versions)
    log.remove(_with_checksums(below) if has_checksums else below)


def _read(log: SmallFiles, version: int) -> Commit:
    # Another process may have removed it: then it has no files.
    return parse_commit(log.read(commit_name(version)) or "")


def parse_commit(text: str) -> Commit:
    """Return the files that the text of a commit adds and removes."""
    added, removed, changes, committed_ms = set[str](), set[str](), set[str](), None
    for action in actions_of(text):
        if "add" in action:
            added |= _files_of(action["add"])
        elif "remove" in action:
            removed |= _files_of(action["remove"])
        elif "cdc" in action:
            changes.add(action["cdc"]["path"])
        elif "commitInfo" in action:
            committed_ms = action["commitInfo"].get("timestamp")
    return Commit(committed_ms, frozenset(added), frozenset(removed), frozenset(changes))


def _files_of(action: Mapping[str, Any]) -> set[str]:
    """Return the file that an action is about, and that of its deletion vector."""
    marks = file_of(action.get("deletionVector") or {})
    return {action["path"], *([] if marks is None else [marks])}


def first_to_keep(
    checkpoints: Iterable[int],
    committed_ms: Callable[[int], int | None],
    replaced_before_ms: int,
) -> int | None:
    """Return the first version that stays: the last checkpoint that was made before a time.

    Each version before it was replaced before that time; its own is the oldest that a reader may
    have begun to read since.

    Args:
        checkpoints: the versions that have one, ascending.
        committed_ms: returns when a version was committed; None if its commit does not say.
        replaced_before_ms: since the Unix epoch.

    Returns:
        None if nothing goes.
    """
    first = None
    for version in checkpoints:
        at_ms = committed_ms(version)
        if at_ms is not None and at_ms >= replaced_before_ms:
            break
        first = first if at_ms is None else version
    return first


def old_versions(versions: Collection[int], checkpoints: Sequence[int], first: int) -> range:
    """Return the versions through the first one that stays whose removed files may go.

    After an earlier removal they follow the oldest checkpoint. A commit before that is one of a
    former owner that was frozen for long and found its number free again; it names files as removed
    that the table still has.

    Args:
        versions: those with a commit in the log.
        checkpoints: those with a checkpoint, ascending.
        first: the first version that stays.
    """
    begin = first
    while begin - 1 in versions:
        begin -= 1
    if begin > 0:
        begin = max(begin, checkpoints[0] + 1)
    return range(begin, first + 1)


def files_to_remove(old: Iterable[Commit]) -> list[str]:
    """Return the files of the table that are not in the version after the old commits.

    Args:
        old: the commits of old_versions(), ascending.
    """
    commits = list(old)
    # Those of the last one can still be read.
    changes = [commit.changes for commit in commits[:-1]]
    is_removed = dict.fromkeys(frozenset().union(*changes), True)
    for commit in commits:
        # A file whose deletion vector changes is both removed and added.
        is_removed |= dict.fromkeys(commit.removed, True) | dict.fromkeys(commit.added, False)
    return [unquote(name) for name, unneeded in is_removed.items() if unneeded and is_inside(name)]


def _with_checksums(names: Iterable[str]) -> Iterator[str]:
    """Yield names, and those of the checksums that Hadoop writes on a local disk."""
    for name in names:
        yield name
        folder, slash, file = name.rpartition("/")
        yield f"{folder}{slash}.{file}.crc"
