"""The merge of an epoch into an Iceberg table, in Arrow: which files change, and to what.

A small file with changed rows is written again. Of a large one a file of deletes says which rows
are gone (Iceberg's specification, "Position Delete Files"), and the changed rows go to a new file.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes

from slackwater.spark_sink.output.iceberg.columns import columns_of_files
from slackwater.spark_sink.output.iceberg.file_rows import (
    deleted_positions,
    is_gone,
    opened,
    rows_of_file,
)
from slackwater.spark_sink.output.iceberg.rewrite import data_file_of, write_deletes
from slackwater.spark_sink.output.iceberg.store_io import files_of
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.merge_statement import CHANGED_AT
from slackwater.spark_sink.sql.merge_statement import IS_DELETED as IS_MARKED_DELETED
from slackwater.spark_sink.tables.row_merges.merged_rows import (
    inserted_rows,
    places,
    updated_rows,
    with_column,
)
from slackwater.spark_sink.tables.row_merges.row_changes import IS_DELETED, IS_WHOLE
from slackwater.spark_sink.tables.table_format import OtherRows

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyiceberg.table import FileScanTask, Table

# In bytes, compressed: a smaller file is written again.
SMALL: Final = 16 << 20
# Of which more rows are gone, a file is written again.
_GONE_SHARE_MAX: Final = 0.25
# Before, there are no files of deletes.
_WITH_DELETES: Final = 2


class IcebergMerge:
    """A merge into one snapshot of a table.

    Args:
        table: as it was loaded.
        latest: as latest_rows() makes them; None for no changes.
        columns: the columns of the rows, which the table has.
        others: what becomes of other rows.
        files_max: of so many files the small ones become one.

    Attributes:
        removed: files that are not the table's any more. With deletes, complete after rows().
        deletes: new files of deletes.
        schema: the table's columns, by columns_of_files().
    """

    def __init__(
        self,
        table: Table,
        latest: pa.Table | None,
        columns: Sequence[Column],
        others: OtherRows,
        files_max: int,
    ) -> None:
        self._table = table
        self._files = files_of(table)
        self._latest = latest
        self._columns = columns
        self._others = others
        self._files_max = files_max
        self.schema = columns_of_files(table)
        self._key = [column for column in columns if column.is_key]
        self._absent = [column.name for column in columns if column.absent_at]
        self._key_bounds = dict(_bounds(latest, self._key)) if latest is not None else {}
        self.removed: list[IcebergFile] = []
        self.deletes: list[IcebergFile] = []

    def rows(self) -> Iterator[pa.Table]:
        """Yield the rows of new files.

        Raises:
            UnreadableFileError: a file does not say which columns it has.
        """
        tasks = list(self._table.scan().plan_files())
        is_crowded = len(tasks) >= self._files_max
        taken = [pa.array([], pa.int32())]
        for task in tasks:
            yield from self._of_file(task, taken, is_crowded=is_crowded)
        if self._latest is not None:
            at = pa.array(np.arange(self._latest.num_rows, dtype=np.int32))
            is_new = pc.invert(pc.is_in(at, pa.concat_arrays(taken)))
            yield self._inserted(self._latest.filter(is_new))

    def _of_file(
        self, task: FileScanTask, taken: list[pa.Array], *, is_crowded: bool
    ) -> Iterator[pa.Table]:
        file = task.file
        deletes = [(d.file_path, d.file_size_in_bytes) for d in task.delete_files]
        gone = deleted_positions(self._files, deletes, file.file_path)
        in_latest = self._places(file, gone)
        changed = in_latest.drop_null()
        taken.append(changed)
        is_small = file.file_size_in_bytes < SMALL
        if self._changes_others or (is_small and (is_crowded or len(changed))):
            yield from self._rewritten(task, in_latest, gone)
        elif len(changed):
            positions = pc.indices_nonzero(pc.is_valid(in_latest)).cast(pa.int64())
            if gone is not None:
                positions = pa.concat_arrays([positions, gone])
            is_replaceable = all(map(data_file_of, task.delete_files))
            is_much = len(positions) > _GONE_SHARE_MAX * file.record_count
            if is_much or not is_replaceable or self._table.format_version < _WITH_DELETES:
                yield from self._rewritten(task, in_latest, gone)
            else:
                self.removed += task.delete_files
                self.deletes.append(write_deletes(self._table, file, positions))
                yield from self._changed(file, in_latest)

    @property
    def _changes_others(self) -> bool:
        return self._others.cleared_at is not None or bool(self._absent)

    def _places(self, file: IcebergFile, gone: pa.Array | None) -> pa.Array:
        """Return for each row of a file the place of its key among the latest; NULL without one."""
        if self._latest is None or not self._may_have_keys(file):
            return pa.nulls(file.record_count, pa.int32())
        columns = pa.schema([self.schema.field(column.name) for column in self._key])
        if self._key:
            with opened(self._files, file.file_path, file.file_size_in_bytes) as source:
                keys = pa.concat_tables(rows_of_file(source, columns))
            in_latest = places(keys, self._latest, self._key)
        else:
            # A table without a key has at most one row, and so have its changes.
            in_latest = pa.repeat(pa.scalar(0, pa.int32()), file.record_count)
        if gone is None:
            return in_latest
        return pc.if_else(is_gone(0, len(in_latest), gone), None, in_latest)

    def _may_have_keys(self, file: IcebergFile) -> bool:
        """Return whether a file's bounds leave room for the keys that change."""
        for column in self._key:
            field = self._table.schema().find_field(column.name)
            lower, upper = (
                None if bounds is None else bounds.get(field.field_id)
                for bounds in (file.lower_bounds, file.upper_bounds)
            )
            least, greatest = self._key_bounds.get(column.name, (None, None))
            if lower is None or upper is None or least is None or greatest is None:
                continue
            kind: Any = field.field_type
            if greatest < int(from_bytes(kind, lower)) or least > int(from_bytes(kind, upper)):
                return False
        return True

    def _rewritten(
        self, task: FileScanTask, in_latest: pa.Array, gone: pa.Array | None
    ) -> Iterator[pa.Table]:
        """Yield what becomes of all rows of a file."""
        file = task.file
        self.removed += [file, *filter(data_file_of, task.delete_files)]
        for first, rows in self._row_groups(file):
            at = in_latest.slice(first, rows.num_rows)
            is_other = pc.is_null(at)
            if gone is not None:
                is_other = pc.and_not(is_other, is_gone(first, rows.num_rows, gone))
            yield self._after(rows.filter(is_other))
            yield self._updated(rows.filter(pc.is_valid(at)), at.drop_null())

    def _changed(self, file: IcebergFile, in_latest: pa.Array) -> Iterator[pa.Table]:
        """Yield what becomes of the changed rows of a file."""
        assert self._latest is not None  # noqa: S101 - there are changed ones
        changes = self._latest.take(in_latest.drop_null())
        if self._are_whole(changes):
            yield self._inserted(changes)
            return
        for first, rows in self._row_groups(file):
            at = in_latest.slice(first, rows.num_rows)
            if at.null_count < len(at):
                yield self._updated(rows.filter(pc.is_valid(at)), at.drop_null())

    def _are_whole(self, changes: pa.Table) -> bool:
        """Return whether changes say all of their rows, of which the files need not be read."""
        names = {column.name for column in self._columns}
        marks = {IS_MARKED_DELETED, CHANGED_AT} if self._others.are_kept else set()
        has_all = set(self.schema.names) <= names | marks
        is_whole = pc.all(changes.column(IS_WHOLE)).as_py()
        keeps_old = self._others.are_kept and pc.any(changes.column(IS_DELETED)).as_py()
        return has_all and is_whole is not False and not keeps_old

    def _row_groups(self, file: IcebergFile) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows of a file, and the place of the first of them."""
        first = 0
        with opened(self._files, file.file_path, file.file_size_in_bytes) as source:
            for rows in rows_of_file(source, self.schema):
                yield first, rows
                first += rows.num_rows

    def _updated(self, rows: pa.Table, at: pa.Array) -> pa.Table:
        if self._latest is None:
            return rows
        keeps_deleted = self._others.are_kept
        latest = self._latest.take(at)
        return updated_rows(rows, latest, self._columns, keeps_deleted=keeps_deleted)

    def _inserted(self, latest: pa.Table) -> pa.Table:
        keeps_deleted = self._others.are_kept
        return inserted_rows(latest, self._columns, self.schema, keeps_deleted=keeps_deleted)

    def _after(self, rows: pa.Table) -> pa.Table:
        """Return what becomes of rows that the epoch does not change."""
        if self._others.cleared_at is None:
            for name in self._absent:
                nulls = pa.nulls(rows.num_rows, rows.schema.field(name).type)
                rows = with_column(rows, name, nulls)
            return rows
        if not self._others.are_kept:
            return rows.slice(0, 0)
        was_marked = rows.column(IS_MARKED_DELETED)
        at = pc.if_else(was_marked, rows.column(CHANGED_AT), pa.scalar(self._others.cleared_at))
        rows = with_column(rows, CHANGED_AT, at)
        return with_column(rows, IS_MARKED_DELETED, pa.repeat(pa.scalar(True), rows.num_rows))


def _bounds(latest: pa.Table, key: Sequence[Column]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the least and the greatest value of integers among the keys, of which none is NULL."""
    for column in key:
        values = latest.column(column.name)
        if pa.types.is_integer(values.type) and not values.null_count and len(values):
            bounds = pc.min_max(values).as_py()
            yield column.name, (bounds["min"], bounds["max"])
