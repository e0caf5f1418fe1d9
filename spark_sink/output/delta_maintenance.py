"""Removal of a Delta table's old versions without a job of Spark's.

VACUUM looks at the age of files alone: with less than a week it may remove one that is about to be
committed.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.compaction_groups import is_inside
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.object_store import ObjectFiles, is_object_store
from slackwater.spark_sink.output.small_files import LocalFiles, SmallFiles, without_scheme
from slackwater.timestamp import seconds_to_ms

_LOG: Final = "_delta_log"
_LAST_CHECKPOINT: Final = "_last_checkpoint"
_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_OF_VERSION: Final = re.compile(r"\d{20}\..+")
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10}))?\.parquet")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a commit says of files.

    Attributes:
        committed_ms: since the Unix epoch, by the clock of its writer; None if it does not say.
        added, removed: names relative to the table, as in the log.
    """

    committed_ms: int | None
    added: frozenset[str]
    removed: frozenset[str]


def log_files(path: str, options: Mapping[str, str]) -> SmallFiles:
    """Return the folder of a table's log.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
    """
    return files_in(path, options, _LOG)


def files_in(path: str, options: Mapping[str, str], folder: str) -> SmallFiles:
    """Return a folder of a table; an empty name is the table's own.

    Args:
        path, options: see log_files().
        folder: its name.
    """
    if is_object_store(path):
        return ObjectFiles(path, options, folder)
    return LocalFiles(Path(without_scheme(path), folder))


def commit_name(version: int) -> str:
    """Return the name of a version's commit in the log."""
    return f"{version:020d}.json"


def has_commits(path: str, options: Mapping[str, str]) -> bool:
    """Return whether there is a table: its first commit, or a checkpoint where that was removed.

    delta-rs has a function for it, too, which holds Python's lock meanwhile (1.6.6).

    Args:
        path, options: see log_files().
    """
    log = log_files(path, options)
    return any(log.read(name) is not None for name in (commit_name(0), _LAST_CHECKPOINT))


def commits_backwards(log: SmallFiles, latest: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield the versions of a table whose commits are there, the latest first, with their actions.

    delta-rs reads a table's history, too, but holds Python's lock meanwhile: no other thread could
    renew the lease.

    Args:
        log: the folder of the table's log.
        latest: the latest version.
    """
    for version in range(latest, -1, -1):
        # Those before one that was removed were removed, too.
        if (text := log.read(commit_name(version))) is None:
            return
        yield version, [json.loads(line) for line in text.splitlines()]


def commit_versions(names: Iterable[str]) -> set[int]:
    """Return the versions whose commits are among the names of a log's files."""
    return {int(match[1]) for match in map(_COMMIT.fullmatch, names) if match}


def forget_checksum(path: str) -> None:
    """Remove the checksum that Hadoop has of the log's _last_checkpoint, which delta-rs replaces.

    With the checksum of another file, Spark takes it for damaged and waits three seconds.

    Args:
        path: the table's folder on a local disk. In an object store there is none.
    """
    if "://" not in path:
        Path(path, _LOG, "._last_checkpoint.crc").unlink(missing_ok=True)


def retention_properties(keep_s: float | None) -> dict[str, str]:
    """Return the properties by which checkpoints forget files that were removed from the table.

    Args:
        keep_s: seconds; None for Delta's own default.
    """
    return {} if keep_s is None else {_FILE_RETENTION: f"interval {round(keep_s)} seconds"}


def current_files(path: str, options: Mapping[str, str]) -> set[str]:
    """Return the names of the files that a table has now, without their folders.

    Raises:
        PublishError: the store fails.
    """
    from deltalake import DeltaTable

    place = path if is_object_store(path) else without_scheme(path)
    try:
        with delta_errors(path, "its maintenance failed", hint=""):
            uris = DeltaTable(place, storage_options=dict(options)).file_uris()
    except DeltaUnsupportedError as error:
        raise PublishError(f"{path}: its maintenance failed: {error}.") from error
    names = {uri.rpartition("/")[2] for uri in uris}
    # As it is, too: one of a table's files must not be taken for another.
    return names | {unquote(name) for name in names}


def expire(path: str, options: Mapping[str, str], keep_s: float) -> None:
    """Remove a table's versions that were replaced some time ago.

    Args:
        path, options: see log_files().
        keep_s: for how many seconds a version that was replaced can still be read.

    Raises:
        PublishError: the disk or the store refuses or fails.
    """
    remove_old_versions(
        log_files(path, options),
        files_in(path, options, ""),
        seconds_to_ms(time.time() - keep_s),
        lambda: current_files(path, options),
        # Of a table to which Spark has written.
        has_checksums=not is_object_store(path),
    )


def remove_old_versions(
    log: SmallFiles,
    data: SmallFiles,
    replaced_before_ms: int,
    current: Callable[[], Collection[str]],
    *,
    has_checksums: bool = False,
) -> None:
    """Remove versions that were replaced before a time, and the files that only they have.

    The versions from a checkpoint on stay, which was itself made before that time. No commit is
    read that stays, but for those of a few checkpoints.

    Args:
        log: the folder of the table's log.
        data: the table's.
        replaced_before_ms: since the Unix epoch.
        current: returns the names of the files that the table has now, without their folders.
        has_checksums: Hadoop writes a file of checksums beside each.
    """
    names = log.names()
    versions = commit_versions(names)
    checkpoints = complete_checkpoints(names)

    def committed_ms(version: int) -> int | None:
        return _read(log, version).committed_ms if version in versions else None

    first = first_to_keep(checkpoints, committed_ms, replaced_before_ms)
    if first is None:
        return
    old = [_read(log, version) for version in old_versions(versions, checkpoints, first)]
    if removed := files_to_remove(old):
        # A file that was restored since is the table's again.
        there = set(current())
        gone = [name for name in removed if name.rpartition("/")[2] not in there]
        data.remove(_with_checksums(gone) if has_checksums else gone)
    # Ascending, so that what stays is without a gap if this is interrupted.
    of_versions = sorted(name for name in names if _OF_VERSION.fullmatch(name))
    below = takewhile(lambda name: int(name.partition(".")[0]) < first, of_versions)
    log.remove(_with_checksums(below) if has_checksums else below)


def _read(log: SmallFiles, version: int) -> Commit:
    # One that another process has removed says nothing of files.
    return parse_commit(log.read(commit_name(version)) or "")


def parse_commit(text: str) -> Commit:
    """Return what the text of a commit says of files."""
    added, removed, committed_ms = set[str](), set[str](), None
    for line in text.splitlines():
        action = json.loads(line)
        if "add" in action:
            added.add(action["add"]["path"])
        elif "remove" in action:
            removed.add(action["remove"]["path"])
        elif "commitInfo" in action:
            committed_ms = action["commitInfo"].get("timestamp")
    return Commit(committed_ms, frozenset(added), frozenset(removed))


def complete_checkpoints(names: Iterable[str]) -> list[int]:
    """Return the versions that have a checkpoint with all its parts, ascending."""
    parts: defaultdict[tuple[int, int], int] = defaultdict(int)
    for match in map(_CHECKPOINT.fullmatch, names):
        if match:
            parts[int(match[1]), int(match[2] or 1)] += 1
    return sorted({version for (version, needed), there in parts.items() if there == needed})


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

    After a former removal they follow the oldest checkpoint. An earlier commit is that of a former
    owner that was frozen for long and found its number free again; it names files as removed that
    the table still has.

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
    is_removed: dict[str, bool] = {}
    for commit in old:
        # A file whose deletion vector changes is both removed and added.
        is_removed |= dict.fromkeys(commit.removed, True) | dict.fromkeys(commit.added, False)
    return [unquote(name) for name, gone in is_removed.items() if gone and is_inside(name)]


def _with_checksums(names: Iterable[str]) -> Iterator[str]:
    """Yield names, and those of the checksums that Hadoop writes on a local disk."""
    for name in names:
        yield name
        folder, slash, file = name.rpartition("/")
        yield f"{folder}{slash}.{file}.crc"
