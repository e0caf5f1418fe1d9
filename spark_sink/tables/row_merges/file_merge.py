"""The merge of an epoch into a table's files, in Arrow.

A small file with changed rows is written again. For a large one, marks beside it name the deleted
rows (Delta's protocol, "Deletion Vectors"; Iceberg's specification, "Position Delete Files"), and
the changed rows go to a new file.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.output.rows_of_files import are_deleted
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.changed_rows import ChangedRows
from slackwater.spark_sink.tables.row_merges.corrections import with_corrections
from slackwater.spark_sink.tables.row_merges.merged_rows import (
    inserted_rows,
    places,
    updated_rows,
    with_column,
)
from slackwater.spark_sink.tables.row_merges.row_changes import (
    CHANGED_AT,
    IS_DELETED,
    IS_MARKED_DELETED,
    IS_WHOLE,
)
from slackwater.spark_sink.tables.table_changes import MergePolicy

# In bytes, compressed: a smaller file is written again.
SMALL: Final = 16 << 20
# A file with a larger part of its rows deleted is written again.
_GONE_SHARE_MAX: Final = 0.25
# Of an object store, where each file takes two requests or more, and of a disk: of so many files
# a merge makes one.
OBJECTS_MAX: Final = 8
FILES_MAX: Final = 50


class MergedFile(Protocol):
    """A data file of the version that is merged into.

    Attributes:
        size: in bytes, compressed.
        may_be_marked: whether the marks of its deleted rows can be replaced.
    """

    size: int
    may_be_marked: bool

    @property
    def rows(self) -> int:
        """The number of its rows, with deleted ones."""

    def deleted_positions(self) -> pa.Array | None:
        """Return the positions of the deleted rows; None for none."""

    def bounds(self, column: str) -> tuple[int, int] | None:
        """Return the least and the greatest value of an integer column; None if it is not known."""

    def read(self, columns: pa.Schema) -> Iterator[tuple[int, pa.Table]]:
        """Yield the rows, deleted ones too, and the position of the first of them.

        Args:
            columns: some of the table's.
        """

    def replace(self) -> None:
        """Remove the file, whose rows are written again."""

    def mark(self, deleted: pa.Array) -> None:
        """Mark rows as deleted, with marks that replace the present ones.

        Args:
            deleted: the positions of all of them.
        """


class FileMerge:
    """A merge into one version of a table.

    Args:
        files: the version's.
        schema: the table's columns, as new files have them.
        latest: as latest_rows() makes them; None for no changes.
        columns: the columns of the rows, which the table has.
        policy: for deleted and unchanged rows.
        files_max: of so many files the small ones become one.
        changes: collects the rows that change, before and after; None to collect none.
    """

    def __init__(
        self,
        files: Sequence[MergedFile],
        schema: pa.Schema,
        latest: pa.Table | None,
        columns: Sequence[Column],
        policy: MergePolicy,
        files_max: int,
        changes: ChangedRows | None = None,
    ) -> None:
        if latest is not None and policy.corrected is not None:
            latest = with_corrections(latest, policy.corrected, columns)
        self._files = files
        self._schema = schema
        self._latest = latest
        self._columns = columns
        self._policy = policy
        self._files_max = files_max
        self._changes = changes
        self._key = [column for column in columns if column.is_key]
        self._absent = [column.name for column in columns if column.absent_at]
        self._key_bounds = dict(_bounds(latest, self._key)) if latest is not None else {}

    def rows(self) -> Iterator[pa.Table]:
        """Yield the rows of new files; when all are taken, files are replaced and marked."""
        is_crowded = len(self._files) >= self._files_max
        taken = [pa.array([], pa.int32())]
        for file in self._files:
            yield from self._of_file(file, taken, is_crowded=is_crowded)
        if self._latest is not None:
            at = pa.array(np.arange(self._latest.num_rows, dtype=np.int32))
            is_new = pc.invert(pc.is_in(at, pa.concat_arrays(taken)))
            new = self._inserted(self._latest.filter(is_new))
            if self._changes is not None:
                self._changes.inserted(new)
            yield new

    def _of_file(
        self, file: MergedFile, taken: list[pa.Array], *, is_crowded: bool
    ) -> Iterator[pa.Table]:
        count = 0 if self._latest is None else self._latest.num_rows
        has_changes = count > 0 and self._may_have_keys(file)
        is_small = file.size < SMALL
        if not has_changes and not self._changes_others and not (is_small and is_crowded):
            return
        deleted = file.deleted_positions()
        in_latest = self._places(file, deleted, has_changes=has_changes)
        changed = in_latest.drop_null()
        taken.append(changed)
        if self._changes_others or (is_small and (is_crowded or len(changed))):
            yield from self._rewritten(file, in_latest, deleted)
        elif len(changed):
            positions = pc.indices_nonzero(pc.is_valid(in_latest)).cast(pa.int64())
            if deleted is not None:
                positions = pa.concat_arrays([positions, deleted])
            if len(positions) > _GONE_SHARE_MAX * file.rows or not file.may_be_marked:
                yield from self._rewritten(file, in_latest, deleted)
            else:
                file.mark(positions)
                yield from self._changed(file, in_latest)

    @property
    def _changes_others(self) -> bool:
        return self._policy.cleared_at is not None or bool(self._absent)

    def _places(self, file: MergedFile, deleted: pa.Array | None, *, has_changes: bool) -> pa.Array:
        """Return for each row of a file the place of its key among the latest; NULL without one."""
        if self._latest is None or not has_changes:
            return pa.nulls(file.rows, pa.int32())
        columns = pa.schema([self._schema.field(column.name) for column in self._key])
        if self._key:
            parts = (rows for _, rows in file.read(columns))
            keys = pa.concat_tables([columns.empty_table(), *parts])
            in_latest = places(keys, self._latest, self._key)
        else:
            # A table without a key has at most one row, and so have its changes.
            in_latest = pa.repeat(pa.scalar(0, pa.int32()), file.rows)
        if deleted is None:
            return in_latest
        return pc.if_else(are_deleted(0, len(in_latest), deleted), None, in_latest)

    def _may_have_keys(self, file: MergedFile) -> bool:
        """Return whether a file may have keys that change, by its bounds."""
        for column in self._key:
            changed, there = self._key_bounds.get(column.name), file.bounds(column.name)
            if changed and there and (changed[1] < there[0] or changed[0] > there[1]):
                return False
        return True

    def _rewritten(
        self, file: MergedFile, in_latest: pa.Array, deleted: pa.Array | None
    ) -> Iterator[pa.Table]:
        """Yield the merged rows of a whole file."""
        file.replace()
        for first, rows in file.read(self._schema):
            at = in_latest.slice(first, rows.num_rows)
            is_other = pc.is_null(at)
            if deleted is not None:
                is_other = pc.and_not(is_other, are_deleted(first, rows.num_rows, deleted))
            yield self._after(rows.filter(is_other))
            yield self._updated(rows.filter(pc.is_valid(at)), at.drop_null())

    def _changed(self, file: MergedFile, in_latest: pa.Array) -> Iterator[pa.Table]:
        """Yield the merged rows in place of a file's changed ones."""
        assert self._latest is not None  # noqa: S101 - there are changed ones
        changes = self._latest.take(in_latest.drop_null())
        if self._changes is None and self._are_whole(changes):
            yield self._inserted(changes)
            return
        for first, rows in file.read(self._schema):
            at = in_latest.slice(first, rows.num_rows)
            if at.null_count < len(at):
                yield self._updated(rows.filter(pc.is_valid(at)), at.drop_null())

    def _are_whole(self, changes: pa.Table) -> bool:
        """Return whether changes have whole rows, for which the files need not be read."""
        names = {column.name for column in self._columns}
        marks = {IS_MARKED_DELETED, CHANGED_AT} if self._policy.are_kept else set()
        has_all = set(self._schema.names) <= names | marks
        is_whole = pc.all(changes.column(IS_WHOLE)).as_py()
        keeps_old = self._policy.are_kept and pc.any(changes.column(IS_DELETED)).as_py()
        return has_all and is_whole is not False and not keeps_old

    def _updated(self, rows: pa.Table, at: pa.Array) -> pa.Table:
        if self._latest is None:
            return rows
        keeps_deleted = self._policy.are_kept
        latest = self._latest.take(at)
        after = updated_rows(rows, latest, self._columns, keeps_deleted=keeps_deleted)
        if self._changes is not None:
            is_deleted = latest.column(IS_DELETED).combine_chunks()
            self._changes.changed(rows, after, pc.and_(is_deleted, pa.scalar(not keeps_deleted)))
        return after

    def _inserted(self, latest: pa.Table) -> pa.Table:
        keeps_deleted = self._policy.are_kept
        return inserted_rows(latest, self._columns, self._schema, keeps_deleted=keeps_deleted)

    def _after(self, rows: pa.Table) -> pa.Table:
        """Return rows that the epoch does not change as they are after it."""
        after = self._other(rows)
        if self._changes is not None and self._changes_others:
            if after.num_rows:
                self._changes.updated(rows, after)
            else:
                self._changes.deleted(rows)
        return after

    def _other(self, rows: pa.Table) -> pa.Table:
        if self._policy.cleared_at is None:
            for name in self._absent:
                nulls = pa.nulls(rows.num_rows, rows.schema.field(name).type)
                rows = with_column(rows, name, nulls)
            return rows
        if not self._policy.are_kept:
            return rows.slice(0, 0)
        was_marked = rows.column(IS_MARKED_DELETED)
        at = pc.if_else(was_marked, rows.column(CHANGED_AT), pa.scalar(self._policy.cleared_at))
        rows = with_column(rows, CHANGED_AT, at)
        return with_column(rows, IS_MARKED_DELETED, pa.repeat(pa.scalar(True), rows.num_rows))


def _bounds(latest: pa.Table, key: Sequence[Column]) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the least and the greatest value of integers among the keys, of which none is NULL."""
    for column in key:
        values = latest.column(column.name)
        if pa.types.is_integer(values.type) and not values.null_count and len(values):
            bounds = pc.min_max(values).as_py()
            yield column.name, (bounds["min"], bounds["max"])
