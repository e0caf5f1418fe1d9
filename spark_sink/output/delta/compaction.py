"""Compaction of a Delta table by the driver: many small files become a large one.

The commit directly follows a version in which the table has all the small files, with the same
marks of deleted rows, and is refused otherwise (Delta's protocol, "Delta Log Entries": creating the
next file of the log is the commit). So two compactions never replace the same files.
"""

import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.output.compaction_groups import TableFile, groups_to_compact
from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.actions import add_action, remove_action
from slackwater.spark_sink.output.delta.delta_log import DeltaLog
from slackwater.spark_sink.output.delta.errors import unsupported
from slackwater.spark_sink.output.delta.features import refused
from slackwater.spark_sink.output.delta.rows import DeltaRows
from slackwater.spark_sink.output.delta.snapshot import Snapshot
from slackwater.spark_sink.output.merged_files import write_table_file
from slackwater.spark_sink.output.parquet_stats import stats_text
from slackwater.spark_sink.output.table_commits import DataFile

# A pipeline may commit between two of them.
_TRIES: Final = 50


def compact(path: str, options: Mapping[str, str]) -> int:
    """Rewrite many small files as few large ones, in a commit for each of these.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().

    Returns:
        The number of commits.

    Raises:
        ObjectStoreError: the driver can't rewrite the table.
        PublishError: other processes commit all the time, or the store fails.
    """
    log, data = DeltaLog(path, options), DataFolder(path, options)
    snapshot = log.load()
    if snapshot is None:
        return 0
    commits = 0
    for group in groups_to_compact(_files_of(log.path, snapshot)):
        names = [file.name for file in group]
        merged = _write_merged(data, snapshot, names)
        after = _replace(log, snapshot, names, merged)
        if after is None:
            # Another process has compacted it, or changed the rows of these files.
            data.remove([merged.name])
            break
        snapshot = after
        commits += 1
    return commits


def _files_of(path: str, snapshot: Snapshot) -> list[TableFile]:
    if features := refused(snapshot):
        raise unsupported(path, features)
    return [
        TableFile(
            name,
            added["size"],
            added["modificationTime"],
            tuple(added["partitionValues"].items()),
        )
        for name, added in snapshot.files.items()
    ]


def _write_merged(data: DataFolder, snapshot: Snapshot, names: Sequence[str]) -> DataFile:
    """Write a file that no commit names yet.

    Raises:
        ObjectStoreError: see DeltaRows.read().
    """
    rows = DeltaRows(data, snapshot)
    folder = names[0].rpartition("/")[0]
    name = "/".join(filter(None, (folder, f"part-{uuid.uuid4().hex}.zstd.parquet")))

    def tables() -> Iterator[pa.Table]:
        for one in names:
            for first, table in rows.read(one, rows.schema):
                yield rows.without_deleted(one, first, table)

    with tempfile.TemporaryDirectory(prefix="slackwater-") as temporary:
        merged = Path(temporary, "merged.parquet")
        footer = write_table_file(merged, rows.schema, tables())
        data.add(name, merged)
        size = merged.stat().st_size
    partition: Any = snapshot.files[names[0]]["partitionValues"]
    return DataFile(name, size, partition, stats_text(footer))


def _replace(
    log: DeltaLog, snapshot: Snapshot, names: Sequence[str], merged: DataFile
) -> Snapshot | None:
    """Commit a file that replaces others; return None if the table lacks one as it was read."""
    read = {name: _identity(snapshot, name) for name in names}
    for _ in range(_TRIES):
        if merged.name in snapshot.files:
            return snapshot
        if any(name not in snapshot.files for name in names) or any(
            _identity(snapshot, name) != identity for name, identity in read.items()
        ):
            return None
        removed = [remove_action(snapshot.files[name], changes_data=False) for name in names]
        actions = [*removed, add_action(merged, changes_data=False)]
        after = log.commit(snapshot, "OPTIMIZE", actions)
        if after is not None:
            return after
        snapshot = log.update(snapshot)
        # Others may have altered the table meanwhile.
        _files_of(log.path, snapshot)
    raise commit_conflict(log.path)


def _identity(snapshot: Snapshot, name: str) -> tuple[str, int] | None:
    """Return the identity of a file's marks of deleted rows."""
    vector = snapshot.files[name].get("deletionVector")
    return None if vector is None else (vector["pathOrInlineDv"], vector.get("offset", 0))
