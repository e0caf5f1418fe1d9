"""Reads the commits of a Delta table from its log, as Delta's protocol describes the files.

DESCRIBE HISTORY does not show a commit's transaction identifier, which is the low watermark of the
epoch that was merged with it, and needs Spark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from slackwater.spark_sink.output.compaction_groups import is_inside
from slackwater.spark_sink.output.delta_errors import delta_errors
from slackwater.spark_sink.output.delta_maintenance import (
    commit_name,
    commit_versions,
    commits_backwards,
    files_in,
    log_files,
)
from slackwater.spark_sink.output.small_files import without_scheme
from slackwater.spark_sink.tables.table_format import LOW_WATERMARK_PROPERTY
from slackwater.spark_sink.tables.table_history import BEFORE_ALL_US, Commit, History

if TYPE_CHECKING:
    from deltalake import DeltaTable

_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\..*(?:parquet|json)")
_MERGE: Final = "MERGE"


def load(path: str, options: Mapping[str, str], version: int | None = None) -> DeltaTable:
    """Return a table. Inside delta_errors().

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().
        version: None for the latest.
    """
    from deltalake import DeltaTable

    return DeltaTable(without_scheme(path), version, storage_options=dict(options))


def read_history(path: str, application: str, options: Mapping[str, str]) -> History:
    """Return the commits from which a table can still be read.

    Args:
        path, options: see load().
        application: the writer whose transaction identifiers are low watermarks.

    Raises:
        DeltaUnsupportedError, PublishError: see delta_errors().
    """
    log = log_files(path, options)
    names = log.names()
    first, has_checkpoint = first_readable(names)
    versions = sorted(version for version in commit_versions(names) if version >= first)
    texts = log.read_all([commit_name(version) for version in versions])
    listed = [
        _commit(version, text, application)
        for version, text in zip(versions, texts, strict=True)
        # It was removed since the names were listed.
        if text is not None
    ]
    if not has_checkpoint:
        return History(listed, is_whole=first == 0)
    with delta_errors(path):
        merged = load(path, options, first).transaction_version(application)
    begin = Commit(first, BEFORE_ALL_US if merged is None else merged)
    return History([begin, *(c for c in listed if c.version > first)], is_whole=False)


def published_version(path: str, options: Mapping[str, str]) -> tuple[int, str] | None:
    """Return a table's version at its published low watermark, and that; None without one.

    A MERGE after the publication belongs to an epoch that is not published yet, and so does a table
    written again because a column's type has changed. Commits of others before it count: they are
    part of what the mirror shows at this low watermark.

    Args:
        path, options: see load().

    Raises:
        DeltaUnsupportedError, PublishError: see delta_errors().
    """
    with delta_errors(path):
        table = load(path, options)
        published = table.metadata().configuration.get(LOW_WATERMARK_PROPERTY)
        latest = table.version()
    if published is None:
        return None
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
    checkpoints = {int(match[1]) for match in map(_CHECKPOINT.fullmatch, names) if match}
    # A checkpoint and the first commit that is there may be neighbors.
    usable = [version for version in checkpoints if version >= oldest - 1]
    return min(usable, default=oldest), bool(usable)


def has_all_files(path: str, options: Mapping[str, str], version: int) -> bool:
    """Return whether a version can be read, and no data file of it was removed, as by VACUUM.

    Only files in the table's own directory are looked for: a mirror has no partitions.

    Args:
        path, options, version: see load().

    Raises:
        PublishError: the disk or the store fails.
    """
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    with delta_errors(path):
        try:
            listed = load(path, options, version).get_add_actions()
        except DeltaError:
            # The commits that lead to it were removed.
            return False
    names = {unquote(name) for name in pa.table(listed).column("path").to_pylist()}
    own = {name for name in names if is_inside(name) and "/" not in name}
    return own <= set(files_in(path, options, "").names())


def _commit(version: int, text: str, application: str) -> Commit:
    """Return what the text of a commit says."""
    actions = [json.loads(line) for line in text.splitlines()]
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
