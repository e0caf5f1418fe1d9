"""The files of a Delta table's log, by their names (Delta's protocol, "Delta Log Entries")."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from slackwater.spark_sink.output.delta.snapshot import Action
from slackwater.spark_sink.output.object_store import ObjectFiles, is_object_store
from slackwater.spark_sink.output.small_files import LocalFiles, SmallFiles, without_scheme

LOG: Final = "_delta_log"
LAST_CHECKPOINT: Final = "_last_checkpoint"
_COMMIT: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(
    r"(\d{20})\.checkpoint(?:\.\d{10}\.(\d{10})|\.([0-9a-f-]{36}))?\.(?:parquet|json)"
)


def log_files(path: str, options: Mapping[str, str]) -> SmallFiles:
    """Return the folder of a table's log.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
    """
    return files_in(path, options, LOG)


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

    Args:
        path, options: see log_files().
    """
    log = log_files(path, options)
    return any(log.read(name) is not None for name in (commit_name(0), LAST_CHECKPOINT))


def commits_backwards(log: SmallFiles, latest: int) -> Iterator[tuple[int, list[Action]]]:
    """Yield the versions of a table whose commits are there, the latest first, with their actions.

    Args:
        log: the folder of the table's log.
        latest: the latest version.
    """
    for version in range(latest, -1, -1):
        # All before a removed one were removed, too.
        if (text := log.read(commit_name(version))) is None:
            return
        yield version, list(actions_of(text))


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
        Path(path, LOG, "._last_checkpoint.crc").unlink(missing_ok=True)


def actions_of(text: str) -> Iterator[Action]:
    """Yield the actions of a commit's text."""
    yield from map(json.loads, text.splitlines())


def checkpoint_files(names: Iterable[str]) -> dict[int, list[str]]:
    """Return the files of the checkpoints that are whole, by their versions.

    Args:
        names: of the log's files.
    """
    parts: defaultdict[tuple[int, int], list[str]] = defaultdict(list)
    for match in map(_CHECKPOINT.fullmatch, names):
        if match:
            parts[int(match[1]), int(match[2] or 1)].append(match[0])
    # Of one version there may be several.
    return {
        version: sorted(there)[:needed]
        for (version, needed), there in parts.items()
        if len(there) >= needed
    }
