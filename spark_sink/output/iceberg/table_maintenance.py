"""Compaction of an Iceberg table by the driver, and removal of its old snapshots and files."""

import logging
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots

from slackwater.spark_sink.errors import ObjectStoreError, commit_conflict
from slackwater.spark_sink.output.compaction_groups import TableFile, groups_to_compact
from slackwater.spark_sink.output.iceberg import retention
from slackwater.spark_sink.output.iceberg.columns import columns_of_files, data_file
from slackwater.spark_sink.output.iceberg.commit_once import commit_once
from slackwater.spark_sink.output.iceberg.file_rows import (
    UnreadableFileError,
    opened,
    rows_of_file,
)
from slackwater.spark_sink.output.iceberg.folder_catalog import FolderCatalog
from slackwater.spark_sink.output.iceberg.rewrite import Rewrite, data_file_of
from slackwater.spark_sink.output.iceberg.snapshots import (
    APPLICATION,
    PUBLISHED_SNAPSHOT,
    fields_of,
    line_of_snapshots,
)
from slackwater.spark_sink.output.iceberg.store_io import files_of, local_path_of
from slackwater.spark_sink.output.merged_files import sync, write_table_file
from slackwater.spark_sink.output.object_store import is_object_store, remove_together
from slackwater.spark_sink.output.parquet_stats import stats_text
from slackwater.spark_sink.output.table_commits import DataFile
from slackwater.timestamp import seconds_to_ms

_log = logging.getLogger(__name__)

# A pipeline may commit between two of them.
_TRIES: Final = 50


def compact(catalog: Catalog, identifier: tuple[str, ...]) -> None:
    """Rewrite many small files as few large ones, in a commit for each of these.

    A commit directly follows a snapshot that has all the small files.

    Raises:
        ObjectStoreError: the driver can't rewrite the table.
        PublishError: other processes commit all the time.
    """
    with suppress(NoSuchTableError):
        table = catalog.load_table(identifier)
        files = {_name(table, entry): entry for entry in _entries(table)}
        listed = [
            TableFile(
                name,
                entry.data_file.file_size_in_bytes,
                entry.sequence_number or 0,
                (("", str(entry.data_file.partition)),),
            )
            for name, entry in files.items()
            if entry.data_file.spec_id == table.metadata.default_spec_id
        ]
        for group in groups_to_compact(listed):
            small = [files[file.name].data_file for file in group]
            merged = _write_merged(table, small)
            if not _replace(table, small, merged):
                # Another process has compacted it, or removed these files.
                table.io.delete(merged.file_path)
                break


def _name(table: Table, entry: ManifestEntry) -> str:
    return entry.data_file.file_path.removeprefix(f"{table.location().rstrip('/')}/")


def _entries(table: Table) -> list[ManifestEntry]:
    """Return a table's files, except those with deleted rows.

    Raises:
        ObjectStoreError: a delete file may be about several, or there are other formats.
    """
    snapshot = table.current_snapshot()
    data, without_some = list[ManifestEntry](), set[str]()
    for manifest in snapshot.manifests(table.io) if snapshot else ():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            if file.content == DataFileContent.DATA:
                data.append(entry)
            elif (of_file := data_file_of(file)) is not None:
                without_some.add(of_file)
            else:
                raise _uncompacted(table, "it has files of deletes")
            if file.file_format != FileFormat.PARQUET:
                raise _uncompacted(table, "its files are not in Parquet")
    return [entry for entry in data if entry.data_file.file_path not in without_some]


def _uncompacted(table: Table, reason: str) -> ObjectStoreError:
    name = ".".join(table.name())
    return ObjectStoreError(
        f"{name} is not compacted: {reason}.", "Compact it by Spark's rewrite_data_files"
    )


def _write_merged(table: Table, files: Sequence[IcebergFile]) -> IcebergFile:
    """Write a file that no snapshot names yet."""
    columns = columns_of_files(table)
    name = f"data/part-{uuid.uuid4().hex}.parquet"
    with tempfile.TemporaryDirectory(prefix="slackwater-") as folder:
        merged = Path(folder, "merged.parquet")
        footer = write_table_file(merged, columns, _rows(table, files, columns))
        location = f"{table.location().rstrip('/')}/{name}"
        _add(table, location, merged)
        file = DataFile(name, merged.stat().st_size, {}, stats_text(footer))
        return data_file(table, file, files[0].partition)


def _rows(table: Table, files: Iterable[IcebergFile], columns: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows of files, which may lack columns that came later.

    Raises:
        ObjectStoreError: a file does not say which columns it has.
    """
    for file in files:
        with opened(files_of(table), file.file_path, file.file_size_in_bytes) as source:
            try:
                yield from rows_of_file(source, columns)
            except UnreadableFileError as error:
                raise _uncompacted(table, str(error)) from error


def _add(table: Table, location: str, file: Path) -> None:
    """Copy a file to its place."""
    if is_object_store(location):
        store, name = files_of(table).place(location)
        store.put(name, file)
    else:
        target = local_path_of(location)
        shutil.copyfile(file, target)
        # The small ones are removed some time later.
        sync(target)


def _replace(table: Table, small: Sequence[IcebergFile], merged: IcebergFile) -> bool:
    """Commit a file that replaces others, and return False if the table lacks one of these."""
    for _ in range(_TRIES):
        there = {entry.data_file.file_path for entry in _entries(table)}
        if not {file.file_path for file in small} <= there:
            return merged.file_path in there
        transaction = table.transaction()
        replace = Rewrite(transaction, Operation.REPLACE, {}, small, [merged])
        try:
            replace.commit()
            commit_once(transaction)
        except CommitFailedException:
            table.refresh()
        else:
            return True
    raise commit_conflict(".".join(table.name()))


def expire(catalog: Catalog, identifier: tuple[str, ...], application: str, keep_s: float) -> None:
    """Remove snapshots that are not needed, and the files that only they have.

    A table with branches or tags keeps all: its owner knows what they are for. So does one with
    gc.enabled=false, as Nessie says of each: another branch may have its files.

    Args:
        catalog, identifier: the table's.
        application: of the pipeline; see retention.expire_before_ms().
        keep_s: for how many seconds a snapshot that was replaced stays.
    """
    for _ in range(_TRIES):
        with suppress(CommitFailedException):
            _expire_snapshots(catalog, identifier, application, keep_s)
            break
    if isinstance(catalog, FolderCatalog):
        catalog.remove_old_metadata(keep_s)


def _expire_snapshots(
    catalog: Catalog, identifier: tuple[str, ...], application: str, keep_s: float
) -> None:
    with suppress(NoSuchTableError):
        table = catalog.load_table(identifier)
        line = list(line_of_snapshots(table.metadata))
        expired = _expired(table, line, application, keep_s)
        if expired:
            oldest = line[len(line) - len(expired) - 1]
            transaction = table.transaction()
            ExpireSnapshots(transaction).by_ids([s.snapshot_id for s in expired]).commit()
            commit_once(transaction)
            _remove_files(table, expired, oldest)


def _expired(
    table: Table, line: Sequence[Snapshot], application: str, keep_s: float
) -> list[Snapshot]:
    metadata = table.metadata
    if table.properties.get("gc.enabled") == "false":
        return []
    if len(metadata.refs) > 1 or len(line) < len(metadata.snapshots):
        _log.info("%s keeps its snapshots: it has branches, tags, or others", table.name())
        return []
    published = table.properties.get(PUBLISHED_SNAPSHOT)
    before_ms = retention.expire_before_ms(
        [
            retention.Snapshot(s.snapshot_id, s.timestamp_ms, fields_of(s).get(APPLICATION))
            for s in line
        ],
        int(published) if published else None,
        application,
        seconds_to_ms(time.time() - keep_s),
    )
    # The current one is the first. Clocks may differ: no snapshot goes before its parent.
    staying = next(
        (place for place, s in enumerate(line) if place and s.timestamp_ms < before_ms), len(line)
    )
    return list(line[staying:])


def _remove_files(table: Table, expired: Sequence[Snapshot], oldest: Snapshot) -> None:
    """Remove the files that only expired snapshots have; they come before the oldest that stays.

    A snapshot names the files that it has removed: no later one has them.
    """
    of_oldest = oldest.manifests(table.io)
    removed = {path for manifest in of_oldest for path in _deleted(table, manifest, oldest)}
    for snapshot in expired:
        manifests = snapshot.manifests(table.io)
        removed |= {snapshot.manifest_list, *(manifest.manifest_path for manifest in manifests)}
        removed |= {path for manifest in manifests for path in _deleted(table, manifest, snapshot)}
    _remove(table, removed - {manifest.manifest_path for manifest in of_oldest})


def _remove(table: Table, locations: set[str]) -> None:
    in_store = [location for location in locations if is_object_store(location)]
    files = files_of(table)
    places = [files.place(location) for location in in_store]
    for store in {id(store): store for store, _ in places}.values():
        remove_together(store, [name for of_file, name in places if of_file is store])
    for location in locations.difference(in_store):
        local_path_of(location).unlink(missing_ok=True)


def _deleted(table: Table, manifest: ManifestFile, snapshot: Snapshot) -> set[str]:
    """Return the files that a snapshot has removed, as a manifest of its own says."""
    if manifest.added_snapshot_id != snapshot.snapshot_id or not manifest.deleted_files_count:
        return set()
    return {
        entry.data_file.file_path
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        if entry.status == ManifestEntryStatus.DELETED
    }
