"""A snapshot in which files replace others, of which some rows may be deleted.

pyiceberg's own rewrite has no delete files.
"""

import io
import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import (
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    SetPropertiesUpdate,
    TableUpdate,
    UpdatesAndRequirements,
)
from pyiceberg.table.update.snapshot import _SnapshotProducer

from slackwater.spark_sink.output.iceberg.file_rows import FIELD_ID
from slackwater.spark_sink.output.iceberg.snapshots import PUBLISHED_SNAPSHOT

# Iceberg's specification, "Reserved Field IDs".
_PATH_ID: Final = 2_147_483_546
_POSITION_ID: Final = 2_147_483_545
_DELETES: Final = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={FIELD_ID: str(_PATH_ID)}),
        pa.field("pos", pa.int64(), nullable=False, metadata={FIELD_ID: str(_POSITION_ID)}),
    ]
)
# So many small lists of files become one.
_MANIFESTS_MAX: Final = 20
# In bytes.
_SMALL_MANIFEST: Final = 1 << 20


class Rewrite(_SnapshotProducer["Rewrite"]):
    """The snapshot that follows the one that a transaction's table was loaded with.

    Args:
        transaction: of the table.
        operation: append, overwrite, or replace if the rows stay the same: readers of changes pass
            it over.
        summary: of the snapshot.
        removed: files of the table.
        added: files of data and of deletes.
    """

    def __init__(
        self,
        transaction: Transaction,
        operation: Operation,
        summary: Mapping[str, str],
        removed: Iterable[IcebergFile],
        added: Iterable[IcebergFile],
    ) -> None:
        files = transaction._table.io
        # pyiceberg does not count for a replacement.
        counted = Operation.OVERWRITE if operation == Operation.REPLACE else operation
        super().__init__(counted, transaction, files, snapshot_properties=dict(summary))
        self._stated = operation
        self._added_data_files = list(added)
        self._deleted_data_files = set(removed)

    def _summary(self, snapshot_properties: Mapping[str, str] = {}) -> Summary:
        summary = super()._summary(dict(snapshot_properties))
        return Summary(self._stated, **summary.additional_properties)

    def _commit(self) -> UpdatesAndRequirements:
        updates, requirements = super()._commit()
        parent = self._transaction.table_metadata.current_snapshot()
        # Readers refuse a table whose snapshots are not in the order of their times, and clocks
        # differ.
        after_ms = 0 if parent is None else parent.timestamp_ms + 1
        made = tuple(_not_before(update, after_ms) for update in updates)
        return (*made, *self._published(parent)), requirements

    def _published(self, parent: Snapshot | None) -> Sequence[TableUpdate]:
        """Return the change that publishes this snapshot with the low watermark of its parent.

        A catalog such as Nessie then has the parent no more. The rows are the same.
        """
        has_changes = self._added_data_files or self._deleted_data_files
        if parent is None or (has_changes and self._stated != Operation.REPLACE):
            return ()
        properties = self._transaction.table_metadata.properties
        if properties.get(PUBLISHED_SNAPSHOT) != str(parent.snapshot_id):
            return ()
        return (SetPropertiesUpdate(updates={PUBLISHED_SNAPSHOT: str(self._snapshot_id)}),)

    def _manifests(self) -> list[ManifestFile]:
        parent = self._transaction.table_metadata.current_snapshot()
        manifests = parent.manifests(self._io) if parent else []
        made = []
        for content in (ManifestContent.DATA, ManifestContent.DELETES):
            made += self._of_content(content, [m for m in manifests if m.content == content])
        return made

    def _of_content(
        self, content: ManifestContent, manifests: Sequence[ManifestFile]
    ) -> list[ManifestFile]:
        """Return the lists of files of one content: those that stay, and one that is new."""
        removed_paths = {file.file_path for file in self._deleted_data_files}
        small = [m for m in manifests if m.manifest_length < _SMALL_MANIFEST]
        is_merged = len(small) >= _MANIFESTS_MAX
        staying, written = [], list[ManifestEntry]()
        for manifest in manifests:
            if not removed_paths and not is_merged and _has_files(manifest):
                staying.append(manifest)
                continue
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            is_changed = any(entry.data_file.file_path in removed_paths for entry in entries)
            if is_changed or (is_merged and manifest.manifest_length < _SMALL_MANIFEST):
                written += [self._after(entry, removed_paths) for entry in entries]
            elif entries:
                staying.append(manifest)
        written += [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                sequence_number=None,
                file_sequence_number=None,
                data_file=file,
            )
            for file in self._added_data_files
            if (file.content == DataFileContent.DATA) == (content == ManifestContent.DATA)
        ]
        return staying + self._written(content, written)

    def _after(self, entry: ManifestEntry, removed_paths: set[str]) -> ManifestEntry:
        is_removed = entry.data_file.file_path in removed_paths
        return ManifestEntry.from_args(
            status=ManifestEntryStatus.DELETED if is_removed else ManifestEntryStatus.EXISTING,
            snapshot_id=self._snapshot_id if is_removed else entry.snapshot_id,
            sequence_number=entry.sequence_number,
            file_sequence_number=entry.file_sequence_number,
            data_file=entry.data_file,
        )

    def _written(
        self, content: ManifestContent, entries: Iterable[ManifestEntry]
    ) -> list[ManifestFile]:
        by_spec: defaultdict[int, list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            by_spec[entry.data_file.spec_id].append(entry)
        made = []
        for spec_id, of_spec in by_spec.items():
            with self._writer(content, spec_id) as writer:
                for entry in of_spec:
                    writer.add_entry(entry)
            made.append(writer.to_manifest_file())
        return made

    def _writer(self, content: ManifestContent, spec_id: int) -> ManifestWriter:
        if content == ManifestContent.DATA:
            return self.new_manifest_writer(self.spec(spec_id))
        return _DeletesWriter(
            self.spec(spec_id),
            self.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            self._compression,
        )

    def _existing_manifests(self) -> list[ManifestFile]:
        raise NotImplementedError

    def _deleted_entries(self) -> list[ManifestEntry]:
        raise NotImplementedError


def _not_before(update: TableUpdate, after_ms: int) -> TableUpdate:
    """Return an update whose snapshot is not earlier than a time."""
    if not isinstance(update, AddSnapshotUpdate):
        return update
    at_ms = max(update.snapshot.timestamp_ms, after_ms)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"timestamp_ms": at_ms}))


def _has_files(manifest: ManifestFile) -> bool:
    return manifest.has_added_files() or manifest.has_existing_files()


class _DeletesWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def write_deletes(table: Table, file: IcebergFile, positions: pa.Array) -> IcebergFile:
    """Write the positions of a data file's deleted rows to a file that no snapshot names yet.

    Args:
        table: in format version 2.
        file: the data file.
        positions: of all deleted rows, the first being 0.
    """
    positions = positions.sort()
    paths = pa.repeat(pa.scalar(file.file_path), len(positions))
    content = io.BytesIO()
    pq.write_table(pa.Table.from_arrays([paths, positions], schema=_DELETES), content)
    location = f"{table.location().rstrip('/')}/data/deletes-{uuid.uuid4().hex}.parquet"
    with table.io.new_output(location).create() as out:
        out.write(content.getvalue())
    path = file.file_path.encode()
    made = IcebergFile.from_args(
        _table_format_version=table.format_version,
        content=DataFileContent.POSITION_DELETES,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=file.partition,
        file_size_in_bytes=len(content.getvalue()),
        record_count=len(positions),
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        # Both ends are the path: the file is about no other.
        lower_bounds={_PATH_ID: path},
        upper_bounds={_PATH_ID: path},
        split_offsets=None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    made.spec_id = file.spec_id
    return made


def data_file_of(deletes: IcebergFile) -> str | None:
    """Return the data file that a file of deletes is about, as those above are; None for many."""
    lower, upper = deletes.lower_bounds or {}, deletes.upper_bounds or {}
    path = lower.get(_PATH_ID)
    return None if path is None or path != upper.get(_PATH_ID) else path.decode()
