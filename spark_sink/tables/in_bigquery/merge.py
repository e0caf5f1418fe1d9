"""The merge of staged rows into a mirror, as SQL of BigQuery's.

BigQuery's documentation: "MERGE statement", "Multi-statement transactions".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.mirror_merge import MirrorMerge, merge_fields
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
    LATEST,
)
from slackwater.spark_sink.tables.table_changes import MergePolicy

# Of staged rows: the names of the columns that the changes have a value of, and their merge.
_CHANGED: Final = f"{LATEST}changed_columns"
_MERGE: Final = f"{LATEST}merge"
STAGED_AT: Final = f"{LATEST}staged_at"
# BigQuery takes 100, of which one has the low watermark.
TABLES_MAX: Final = 99
# In characters: it takes a million of a script.
_TEXT_MAX: Final = 900_000


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows of one merge in a table for rows on their way.

    Attributes:
        table: its id.
        merge: names the merge in the rows.
        at_us: when they were staged, by their own word, in microseconds.
        count: the number of rows.
    """

    table: str
    merge: str
    at_us: int
    count: int


@dataclass(frozen=True, slots=True)
class TableMerge(MirrorMerge):
    """The MirrorMerge of an epoch, or of a scan's chunk, into one mirror.

    Attributes:
        staged: the rows; None for a merge without rows.
        is_insertion: the staged rows are the mirror's, and new.
        has_plain_keys: no key has a part that is not equal to itself, NULL or NaN.
        bounds: the least and the greatest value of the key's first column, by which BigQuery leaves
            out parts of the mirror; None if they are no integers.
    """

    staged: StagedRows | None = None
    is_insertion: bool = False
    has_plain_keys: bool = False
    bounds: Sequence[int] | None = None
    not_matched: ClassVar[str] = "WHEN NOT MATCHED BY TARGET"

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "TableMerge":
        """Return the merge of which asdict() has made fields."""
        staged = fields["staged"]
        return cls(**{**fields, "staged": None if staged is None else StagedRows(**staged)})

    def statements(self) -> list[str]:
        """Return the statements of the merge, or of the insertion; see MirrorMerge."""
        if self.staged is None or not self.is_insertion:
            return MirrorMerge.statements(self)
        names, rows = ", ".join(map(_name, self.columns)), _rows(self.staged)
        return [f"INSERT INTO {self._mirror} ({names}) SELECT {names} FROM {rows}"]

    @property
    def _mirror(self) -> str:
        return _name(self.target)

    def _matches(self) -> list[tuple[str, str]]:
        """Return the staged rows, and when a row is the one of a key; see MirrorMerge.

        NULL is equal to NULL, and NaN to NaN. BigQuery joins by equality only, of an expression
        from each side.
        """
        if self.staged is None:
            return []
        if self.has_plain_keys and self.key:
            equal = [f"{_of('t', name)} = {_of('s', name)}" for name in self.key]
            if self.bounds is not None:
                least, greatest = self.bounds
                equal.append(f"{_of('t', self.key[0])} BETWEEN {least} AND {greatest}")
            on = " AND ".join(equal)
        elif self.key:
            t, s = (f"STRUCT({', '.join(_of(side, name) for name in self.key)})" for side in "ts")
            on = f"TO_JSON_STRING({t}) = TO_JSON_STRING({s})"
        else:
            # A table without a key has at most one row, and so have its changes.
            on = "(TO_JSON_STRING(t) IS NULL) = (TO_JSON_STRING(s) IS NULL)"
        return [(f"(SELECT * FROM {_rows(self.staged)}) AS s", on)]

    def _name(self, column: str) -> str:
        return _name(column)

    def _staged(self, name: str) -> str:
        return _of("s", name)

    def _is_changed(self, column: str) -> str:
        return f"{_of('s', IS_WHOLE)} OR {_text(column)} IN UNNEST({_of('s', _CHANGED)})"

    def _time(self, time_us: int) -> str:
        return f"TIMESTAMP_MICROS({time_us})"


def table_merge(
    target: str,
    staged: StagedRows | None,
    rows: pa.Table | None,
    columns: Sequence[Column],
    policy: MergePolicy,
) -> TableMerge:
    """Return the merge of an epoch.

    Args:
        target, staged: see TableMerge.
        rows: as latest_rows() makes them; None for no changes.
        columns: the columns of the rows, which the mirror has.
        policy: for deleted and unchanged rows.
    """
    fields = merge_fields(columns, policy)
    key = fields["key"]
    is_plain = rows is not None and all(_is_plain(rows.column(name)) for name in key)
    return TableMerge(
        target,
        **fields,
        staged=staged,
        has_plain_keys=is_plain,
        bounds=_bounds(rows.column(key[0])) if rows is not None and key and is_plain else None,
    )


def _bounds(values: pa.ChunkedArray) -> tuple[int, int] | None:
    if not len(values) or not pa.types.is_integer(values.type):
        return None
    bounds = pc.min_max(values).as_py()
    return bounds["min"], bounds["max"]


def _is_plain(values: pa.ChunkedArray) -> bool:
    is_floating = pa.types.is_floating(values.type)
    return values.null_count == 0 and not (is_floating and pc.any(pc.is_nan(values)).as_py())


def staged_changes(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    """Return rows of latest_rows() as they are staged: with the same columns in each epoch."""
    names = [column.name for column in columns]
    made = rows.select([*names, IS_DELETED, IS_WHOLE, COMMIT_TIMESTAMP])
    return made.append_column(_CHANGED, _changed_columns(rows))


def marked(rows: pa.Table, staged: StagedRows) -> pa.Table:
    """Return rows with what tells them from others in their table."""
    times = pa.repeat(pa.scalar(staged.at_us, pa.int64()), rows.num_rows)
    marked = rows.append_column(_MERGE, pa.repeat(pa.scalar(staged.merge), rows.num_rows))
    return marked.append_column(STAGED_AT, times.cast(pa.timestamp("us", "UTC")))


def _changed_columns(rows: pa.Table) -> pa.Array:
    names = [name for name in rows.column_names if name.startswith(IS_CHANGED)]
    flags = [rows.column(name).to_pylist() for name in names]
    changed = [
        [name.removeprefix(IS_CHANGED) for name, is_set in zip(names, row, strict=True) if is_set]
        for row in zip(*flags, strict=True)
    ]
    return pa.array(changed or [[]] * rows.num_rows, pa.list_(pa.string()))


def transaction(
    merges: Sequence[TableMerge],
    marks: str,
    pipeline: str,
    low_watermark_us: int,
    *,
    chunk: str | None = None,
    moved: Sequence[str] | None = (),
    is_late: bool = False,
) -> str:
    """Return a script that does merges in one transaction, unless they are done.

    It may run at any time and any number of times, in any process: when the pipeline has this low
    watermark, it does nothing. Of two that run at once one fails: each updates the pipeline's row
    of marks first (BigQuery's documentation, "Transaction concurrency").

    Args:
        merges: of at most TABLES_MAX tables.
        marks: the id of the table with the low watermarks of pipelines, and with chunks of scans.
        pipeline: whose it is.
        low_watermark_us: the epoch's, or the scan's, in microseconds.
        chunk: names the chunk of a scan; None for an epoch.
        moved: the pipeline has this low watermark then, and these tables lack rows; None if other
            transactions of the epoch follow.
        is_late: staged rows may be gone, as after their table's expiry; then it fails.
    """
    time, name = f"TIMESTAMP_MICROS({low_watermark_us})", _text(pipeline)
    late = [step for merge in merges if is_late for step in _all_staged(merge)]
    steps = [*late, *(step for merge in merges for step in merge.statements())]
    is_new = f"COALESCE(MAX(low_watermark) < {time}, TRUE)"
    if chunk is not None:
        is_new += f" AND COUNTIF(chunk = {_text(chunk)}) = 0"
        steps.append(
            f"INSERT INTO {_name(marks)} (pipeline, chunk) VALUES ({name}, {_text(chunk)})"
        )
    elif moved is not None:
        tables = f"ARRAY<STRING>[{', '.join(map(_text, moved))}]"
        steps.append(
            f"UPDATE {_name(marks)} SET low_watermark = {time}, incomplete = {tables}"
            f" WHERE pipeline = {name} AND chunk IS NULL"
        )
    of_pipeline = f"FROM {_name(marks)} WHERE pipeline = {name}"
    return ";\n".join(
        [
            "DECLARE is_new BOOL",
            "BEGIN TRANSACTION",
            f"UPDATE {_name(marks)} SET transactions = COALESCE(transactions, 0) + 1"
            f" WHERE pipeline = {name} AND chunk IS NULL",
            f"SET is_new = (SELECT {is_new} {of_pipeline})",
            "IF is_new THEN " + ";\n".join(steps),
            "END IF",
            "COMMIT TRANSACTION;",
        ]
    )


def first_mark(marks: str, pipeline: str) -> str:
    """Return the statement that gives a pipeline its row of marks, unless it has one."""
    return (
        f"MERGE {_name(marks)} AS t USING (SELECT {_text(pipeline)} AS pipeline) AS s"
        " ON t.pipeline = s.pipeline AND t.chunk IS NULL"
        " WHEN NOT MATCHED BY TARGET THEN INSERT (pipeline) VALUES (s.pipeline)"
    )


def in_transactions(merges: Sequence[TableMerge]) -> list[list[TableMerge]]:
    """Return merges as transactions can take them; one of none for no merges."""
    steps: list[list[TableMerge]] = [[]]
    length = 0
    for merge in merges:
        size = sum(map(len, (*_all_staged(merge), *merge.statements())))
        if steps[-1] and (len(steps[-1]) == TABLES_MAX or length + size > _TEXT_MAX):
            steps.append([])
            length = 0
        steps[-1].append(merge)
        length += size
    return steps


def _all_staged(merge: TableMerge) -> list[str]:
    """Return the statement that fails if staged rows are gone."""
    if merge.staged is None:
        return []
    return [
        f"IF (SELECT COUNT(*) FROM {_rows(merge.staged)}) != {merge.staged.count} THEN"
        f" SELECT ERROR({_text(f'rows of {merge.staged.table} are gone')});\nEND IF"
    ]


def _rows(staged: StagedRows) -> str:
    return (
        f"{_name(staged.table)} WHERE {_name(_MERGE)} = {_text(staged.merge)}"
        f" AND {_name(STAGED_AT)} = TIMESTAMP_MICROS({staged.at_us})"
    )


def _of(side: str, name: str) -> str:
    return f"{side}.{_name(name)}"


def _name(name: str) -> str:
    return f"`{name}`"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
