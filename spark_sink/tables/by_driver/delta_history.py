"""The history of a Delta table, from the log's files as Delta's protocol describes them.

DESCRIBE HISTORY does not show a commit's transaction identifier, which is the low watermark of the
epoch that was merged with it, and needs Spark.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import Any, Final

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.compaction_groups import is_inside
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.delta.log_files import (
    actions_of,
    checkpoint_files,
    commit_name,
    commit_versions,
    commits_backwards,
    files_in,
    log_files,
)
from slackwater.spark_sink.output.delta.snapshot import Action
from slackwater.spark_sink.tables.table_changes import LOW_WATERMARK_PROPERTY
from slackwater.spark_sink.tables.table_history import BEFORE_ALL_US, Commit, History

_MERGE: Final = "MERGE"


def read_history(path: str, application: str, options: Mapping[str, str]) -> History:
    """Return the commits from which a table can still be read.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
        application: the writer whose transaction identifiers are low watermarks.

    Raises:
        PublishError: the disk or the store fails.
    """
    log = log_files(path, options)
    names = log.names()
    first, has_checkpoint = first_readable(names)
    versions = sorted(version for version in commit_versions(names) if version >= first)
    texts = log.read_all([commit_name(version) for version in versions])
    listed = [
        _commit(version, list(actions_of(text)), application)
        for version, text in zip(versions, texts, strict=True)
        # It was removed after the names were listed.
        if text is not None
    ]
    if not has_checkpoint:
        return History(listed, is_whole=first == 0)
    begun = DeltaLog(path, options).load(first)
    merged = None if begun is None else begun.transactions.get(application)
    begin = Commit(first, BEFORE_ALL_US if merged is None else merged)
    return History([begin, *(c for c in listed if c.version > first)], is_whole=False)


def published_version(path: str, options: Mapping[str, str]) -> tuple[int, str] | None:
    """Return a table's version at its published low watermark, and that; None without one.

    A MERGE after the publication belongs to an epoch that is not published yet, and so does a table
    written again because a column's type has changed. Commits of others before it count: they are
    part of what the mirror shows at this low watermark.

    Args:
        path, options: see read_history().

    Raises:
        PublishError: the disk or the store fails.
    """
    snapshot = DeltaLog(path, options).load()
    published = None if snapshot is None else snapshot.properties.get(LOW_WATERMARK_PROPERTY)
    if snapshot is None or published is None:
        return None
    latest = snapshot.version
    later: list[tuple[int, list[Any]]] = []
    for version, actions in commits_backwards(log_files(path, options), latest):
        if _publication(actions) == published:
            unmerged = takewhile(lambda commit: not _is_of_next_epoch(commit[1]), reversed(later))
            return max([version, *(v for v, _ in unmerged)]), published
        later.append((version, actions))
    return None


def first_readable(names: Collection[str]) -> tuple[int, bool]:
    """Return the earliest version that can be read, and whether it has a checkpoint.

    A version can be read if all commits up to it are there, or those since a checkpoint.

    Args:
        names: of the files in the log.
    """
    commits = commit_versions(names)
    oldest = max(commits, default=0)
    while oldest - 1 in commits:
        oldest -= 1
    if oldest == 0:
        return 0, False
    # A checkpoint and the first commit that is there may be neighbors.
    usable = [version for version in checkpoint_files(names) if version >= oldest - 1]
    return min(usable, default=oldest), bool(usable)


def has_all_files(path: str, options: Mapping[str, str], version: int) -> bool:
    """Return whether a version can be read, and no data file of it was removed, as by VACUUM.

    Only files in the table's own directory are looked for: a mirror has no partitions.

    Args:
        path, options: see read_history().
        version: the version.

    Raises:
        PublishError: the disk or the store fails.
    """
    try:
        snapshot = DeltaLog(path, options).load(version)
    except PublishError:
        # The commits that lead to it were removed.
        return False
    names = {} if snapshot is None else snapshot.files
    own = {name for name in names if is_inside(name) and "/" not in name}
    return own <= set(files_in(path, options, "").names())


def _commit(version: int, actions: Collection[Action], application: str) -> Commit:
    """Return the commit of a version's actions."""
    merged = [
        action["txn"]["version"]
        for action in actions
        if action.get("txn", {}).get("appId") == application
    ]
    return Commit(
        version,
        max(merged, default=None),
        any(_is_rewrite(action) for action in actions),
        any("add" in action for action in actions),
    )


def _is_rewrite(action: Mapping[str, Any]) -> bool:
    operation = action.get("commitInfo", {}).get("operation")
    return (operation, _parameters(action).get("mode")) == ("WRITE", "Overwrite")


def _is_of_next_epoch(actions: Iterable[Mapping[str, Any]]) -> bool:
    return any(
        action.get("commitInfo", {}).get("operation") == _MERGE or _is_rewrite(action)
        for action in actions
    )


def _publication(actions: Iterable[Mapping[str, Any]]) -> str | None:
    """Return the low watermark that a commit publishes."""
    for action in actions:
        text = _parameters(action).get("properties")
        # UNSET has a list of names.
        properties = json.loads(text) if isinstance(text, str) else text
        if isinstance(properties, dict) and LOW_WATERMARK_PROPERTY in properties:
            return str(properties[LOW_WATERMARK_PROPERTY])
    return None


def _parameters(action: Mapping[str, Any]) -> Mapping[str, Any]:
    return action.get("commitInfo", {}).get("operationParameters") or {}
