"""Compaction of a Delta table by the driver: many small files become a large one.

delta-rs has an OPTIMIZE, but commits it beside another one of the same files: of what others have
removed it looks only at what changed data (1.6.6). The rows of both are then in the table. Here
the commit directly follows a version in which the table has all the small files, and is refused
otherwise (Delta's protocol, "Delta Log Entries": who creates the next file of the log has
committed). So two compactions never replace the same files, whoever makes them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from slackwater.spark_sink.errors import ObjectStoreError, commit_conflict
from slackwater.spark_sink.output.compaction_groups import TableFile, groups_to_compact
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.delta_features import COLUMN_MAPPING, has_column_mapping
from slackwater.spark_sink.output.delta_maintenance import commit_name, expire, log_files
from slackwater.spark_sink.output.merged_files import sync, write_table_file
from slackwater.spark_sink.output.object_store import download, open_object_store, remove
from slackwater.spark_sink.output.parquet_stats import stats_text
from slackwater.spark_sink.output.small_files import SmallFiles

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import AddAction, RemoveAction
    from obstore.store import ObjectStore

# What tables may ask of a reader. A file whose deletion vector is ignored would get back its rows.
_FEATURES: Final = frozenset({"timestampNtz"})
# A pipeline may commit between two of them.
_TRIES: Final = 50


def compact_and_expire(path: str, options: Mapping[str, str], keep_s: float | None) -> None:
    """Compact a table, and remove its old versions also if it can't be compacted.

    Args:
        path, options: see compact().
        keep_s: see expire(); None for ever.

    Raises:
        ObjectStoreError: the driver can't rewrite the table.
        PublishError: see compact() and expire().
    """
    refusal: DeltaUnsupportedError | None = None
    try:
        compact(path, options)
    except DeltaUnsupportedError as error:
        refusal = error
    if keep_s is not None:
        expire(path, options, keep_s)
    if refusal is not None:
        raise ObjectStoreError(
            f"{path} is not compacted: {refusal}.", "Compact it by Spark's OPTIMIZE"
        ) from refusal


def compact(path: str, options: Mapping[str, str]) -> None:
    """Rewrite many small files as few large ones, in a commit for each of these.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().

    Raises:
        DeltaUnsupportedError: the driver can't rewrite the table.
        PublishError: other processes commit all the time, or the store fails.
    """
    from deltalake import DeltaTable

    with delta_errors(path, "its compaction failed", hint=""):
        compact_loaded(DeltaTable(path, storage_options=dict(options)), path, options)


def compact_loaded(table: DeltaTable, path: str, options: Mapping[str, str]) -> int:
    """Compact a table that is loaded, and load what is committed.

    Args:
        table: the table.
        path, options: see compact().

    Returns:
        The number of commits.

    Raises:
        DeltaError, OSError, BaseError: the store fails.
        DeltaUnsupportedError, PublishError: see compact().
    """
    _require_readable(table)
    schema = pa.schema(table.schema().to_arrow())
    partition_by = table.metadata().partition_columns
    columns = pa.schema([field for field in schema if field.name not in partition_by])
    data = _Bucket(open_object_store(path, options)) if "://" in path else _Disk(Path(path))
    log = log_files(path, options)
    commits = 0
    for group in groups_to_compact(_files_of(table)):
        added = _write_merged(data, group, columns, partition_by)
        if not _replace(table, path, log, group, added):
            # Another process has compacted it, or changed the rows of these files.
            data.remove(added.path)
            break
        commits += 1
    return commits


def _files_of(table: DeltaTable) -> list[TableFile]:
    """Return a table's files.

    Raises:
        DeltaUnsupportedError: a partition column has values that are not written here.
    """
    listed = pa.table(table.get_add_actions())
    names = {"path", "size_bytes", "modification_time", "partition"}
    rows = listed.select([name for name in listed.column_names if name in names]).to_pylist()
    return [
        TableFile(
            # In the log names are escaped, as parts of URLs.
            unquote(row["path"]),
            row["size_bytes"],
            row["modification_time"],
            tuple((name, _text(value)) for name, value in row.get("partition", {}).items()),
        )
        for row in rows
    ]


def _text(value: object) -> str | None:
    """Return the value of a partition column as the log has it."""
    if value is None or isinstance(value, str):
        return value or None
    if type(value) in (int, date):
        return str(value)
    raise DeltaUnsupportedError(f"it has a partition of {type(value).__name__}")


class _Disk:
    """The files of a table on a local disk.

    Args:
        folder: the table's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def read(self, names: Sequence[str], temporary: Path) -> list[Path]:  # noqa: ARG002
        """Return the files."""
        return [self._folder / name for name in names]

    def add(self, name: str, file: Path) -> None:
        """Copy a file to its name."""
        shutil.copyfile(file, self._folder / name)
        # The small ones are removed some time later.
        sync(self._folder / name)

    def remove(self, name: str) -> None:
        """Remove a file that no commit names."""
        (self._folder / name).unlink()


class _Bucket:
    """The files of a table in an object store.

    Args:
        store: from the table's URL on.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def read(self, names: Sequence[str], temporary: Path) -> list[Path]:
        """Return copies of files in a folder for temporary files."""
        return download(self._store, names, temporary)

    def add(self, name: str, file: Path) -> None:
        """Upload a file."""
        self._store.put(name, file)

    def remove(self, name: str) -> None:
        """Remove a file that no commit names."""
        remove(self._store, [name])


def _write_merged(
    data: _Disk | _Bucket,
    group: Sequence[TableFile],
    schema: pa.Schema,
    partition_by: Sequence[str],
) -> AddAction:
    """Write a file that no commit names yet."""
    from deltalake.transaction import AddAction

    folder = group[0].name.rpartition("/")[0]
    name = "/".join(filter(None, (folder, f"part-{uuid.uuid4().hex}.zstd.parquet")))
    with tempfile.TemporaryDirectory(prefix="slackwater-") as temporary:
        merged = Path(temporary, "merged.parquet")
        files = data.read([file.name for file in group], Path(temporary))
        footer = write_table_file(merged, schema, _rows(files, schema, partition_by))
        data.add(name, merged)
        size = merged.stat().st_size
    return AddAction(name, size, dict(group[0].partition), _now_ms(), False, stats_text(footer))


def _rows(
    files: Sequence[Path], schema: pa.Schema, partition_by: Sequence[str]
) -> Iterator[pa.Table]:
    """Yield the rows of files, which may lack columns that came later.

    Raises:
        DeltaUnsupportedError: a column has another name or type now.
    """
    for path in files:
        file = pq.ParquetFile(path, coerce_int96_timestamp_unit="us")
        if others := set(file.schema_arrow.names) - {*schema.names, *partition_by}:
            raise DeltaUnsupportedError(f"{path.name} has the columns {', '.join(others)}")
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number)
            try:
                arrays = [
                    rows.column(field.name).cast(field.type)
                    if field.name in rows.column_names
                    else pa.nulls(rows.num_rows, field.type)
                    for field in schema
                ]
            except pa.ArrowException as error:
                raise DeltaUnsupportedError(f"its columns have changed: {error}") from error
            yield pa.Table.from_arrays(arrays, schema=schema)


def _replace(
    table: DeltaTable, path: str, log: SmallFiles, group: Sequence[TableFile], added: AddAction
) -> bool:
    """Commit a file that replaces others, and return False if the table lacks one of these."""
    from deltalake.exceptions import CommitFailedError
    from deltalake.transaction import CommitProperties

    # delta-rs itself must not put it after other commits, nor call it an append: other writers pay
    # no attention to those.
    properties = CommitProperties({"isBlindAppend": False}, max_commit_retries=0)
    for _ in range(_TRIES):
        _require_readable(table)
        there = {file.name for file in _files_of(table)}
        if any(file.name not in there for file in group):
            return False
        try:
            table.create_write_transaction(
                [added, *_removals(group)],
                "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=properties,
            )
        except CommitFailedError:
            # If only the answer was lost, the commit of this number names the file.
            commit = log.read(commit_name(table.version() + 1)) or ""
            is_there = Path(added.path).name in commit
        else:
            is_there = True
        table.update_incremental()
        if is_there:
            return True
    raise commit_conflict(path)


def _removals(group: Sequence[TableFile]) -> list[RemoveAction]:
    from deltalake.transaction import RemoveAction

    now_ms = _now_ms()
    return [
        RemoveAction(file.name, False, now_ms, file.size, dict(file.partition)) for file in group
    ]


def _require_readable(table: DeltaTable) -> None:
    features = set(table.protocol().reader_features or ()) - _FEATURES
    if has_column_mapping(table):
        features.add(COLUMN_MAPPING)
    if features:
        raise DeltaUnsupportedError(f"it has {', '.join(sorted(features))}")


def _now_ms() -> int:
    return round(time.time() * 1_000)
