"""The merge of staged rows into a mirror, as SQL of BigQuery's.

The effect on each row is that of row_merges.merged_rows. BigQuery's documentation: "MERGE
statement", "Multi-statement transactions".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.row_changes import (
    CHANGED_AT,
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_MARKED_DELETED,
    IS_WHOLE,
    LATEST,
)
from slackwater.spark_sink.tables.table_changes import MergePolicy
from slackwater.timestamp import datetime_to_us

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
class TableMerge:
    """The merge of an epoch, or of a scan's chunk, into one mirror.

    Attributes:
        target: the mirror's id.
        columns: those of the staged rows that the mirror has.
        staged: the rows; None for a merge without rows.
        is_insertion: the staged rows are the mirror's, and new.
        key: the key's columns.
        updated: the columns that an update sets.
        absent: the columns whose earlier values are gone.
        are_kept: a deleted row stays, marked as deleted.
        cleared_at_us: rows that are not staged are deleted as of this time, in microseconds; None
            if they stay.
        has_plain_keys: no key has a part that is not equal to itself, NULL or NaN.
        bounds: the least and the greatest value of the key's first column, by which BigQuery leaves
            out parts of the mirror; None if they are no integers.
    """

    target: str
    columns: Sequence[str]
    staged: StagedRows | None
    is_insertion: bool = False
    key: Sequence[str] = ()
    updated: Sequence[str] = ()
    absent: Sequence[str] = ()
    are_kept: bool = False
    cleared_at_us: int | None = None
    has_plain_keys: bool = False
    bounds: Sequence[int] | None = None

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TableMerge:
        """Return the merge of which asdict() has made fields."""
        staged = fields["staged"]
        return cls(**{**fields, "staged": None if staged is None else StagedRows(**staged)})


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
    cleared = policy.cleared_at
    key = [column.name for column in columns if column.is_key]
    is_plain = rows is not None and all(_is_plain(rows.column(name)) for name in key)
    return TableMerge(
        target,
        [column.name for column in columns],
        staged,
        key=key,
        updated=[column.name for column in columns if column.is_set_by_update],
        absent=[column.name for column in columns if column.absent_at is not None],
        are_kept=policy.are_kept,
        cleared_at_us=None if cleared is None else datetime_to_us(cleared),
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
    steps = [*late, *(step for merge in merges for step in _merged(merge))]
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
        size = sum(map(len, (*_all_staged(merge), *_merged(merge))))
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


def _merged(merge: TableMerge) -> list[str]:
    """Return the statements of a merge: of rows that are not staged, and of those that are."""
    if merge.staged is None:
        return _others(merge, "TRUE")
    rows = _rows(merge.staged)
    if merge.is_insertion:
        names = ", ".join(map(_name, merge.columns))
        return [f"INSERT INTO {_name(merge.target)} ({names}) SELECT {names} FROM {rows}"]
    staged = f"(SELECT * FROM {rows}) AS s"
    is_deleted = _of("s", IS_DELETED)
    inserts = {name: _of("s", name) for name in merge.columns} | _marked(merge)
    updates = {name: _updated(merge, name) for name in merge.updated} | _marked(merge)
    clauses = [f"MERGE {_name(merge.target)} AS t USING {staged} ON {_on(merge)}"]
    if not merge.are_kept:
        clauses.append(f"WHEN MATCHED AND {is_deleted} THEN DELETE")
    if updates:
        clauses.append(f"WHEN MATCHED THEN UPDATE {_set(updates)}")
    condition = "" if merge.are_kept else f" AND NOT {is_deleted}"
    clauses.append(
        f"WHEN NOT MATCHED BY TARGET{condition} THEN"
        f" INSERT ({', '.join(map(_name, inserts))}) VALUES ({', '.join(inserts.values())})"
    )
    unstaged = f"NOT EXISTS (SELECT 1 FROM {staged} WHERE {_on(merge)})"
    return [*_others(merge, unstaged), "\n".join(clauses)]


def _on(merge: TableMerge) -> str:
    """Return when a row is the one of a key: NULL is equal to NULL, and NaN to NaN.

    BigQuery joins by equality only, of an expression from each side.
    """
    if merge.has_plain_keys and merge.key:
        equal = [f"{_of('t', name)} = {_of('s', name)}" for name in merge.key]
        if merge.bounds is not None:
            least, greatest = merge.bounds
            equal.append(f"{_of('t', merge.key[0])} BETWEEN {least} AND {greatest}")
        return " AND ".join(equal)
    if not merge.key:
        # A table without a key has at most one row, and so have its changes.
        return "(TO_JSON_STRING(t) IS NULL) = (TO_JSON_STRING(s) IS NULL)"
    t, s = (f"STRUCT({', '.join(_of(side, name) for name in merge.key)})" for side in "ts")
    return f"TO_JSON_STRING({t}) = TO_JSON_STRING({s})"


def _updated(merge: TableMerge, name: str) -> str:
    new, old = _of("s", name), _of("t", name)
    is_new = f"{_of('s', IS_WHOLE)} OR {_text(name)} IN UNNEST({_of('s', _CHANGED)})"
    if merge.are_kept:
        is_new = f"NOT {_of('s', IS_DELETED)} AND ({is_new})"
    if name in merge.absent:
        old = f"IF({_of('s', IS_DELETED)}, {old}, NULL)"
    return f"IF({is_new}, {new}, {old})"


def _marked(merge: TableMerge) -> dict[str, str]:
    if not merge.are_kept:
        return {}
    return {
        IS_MARKED_DELETED: _of("s", IS_DELETED),
        CHANGED_AT: _of("s", COMMIT_TIMESTAMP),
    }


def _others(merge: TableMerge, condition: str) -> list[str]:
    """Return the statement for rows that are not staged; none if they stay as they are."""
    target, cleared_us = f"{_name(merge.target)} AS t", merge.cleared_at_us
    if cleared_us is not None and not merge.are_kept:
        return [f"DELETE FROM {target} WHERE {condition}"]
    sets = dict.fromkeys(merge.absent, "NULL")
    if cleared_us is not None:
        is_marked, at = _of("t", IS_MARKED_DELETED), _of("t", CHANGED_AT)
        at = f"IF({is_marked}, {at}, TIMESTAMP_MICROS({cleared_us}))"
        sets = {CHANGED_AT: at, IS_MARKED_DELETED: "TRUE"}
    return [f"UPDATE {target} {_set(sets)} WHERE {condition}"] if sets else []


def _set(values: Mapping[str, str]) -> str:
    return "SET " + ", ".join(f"{_name(name)} = {value}" for name, value in values.items())


def _of(side: str, name: str) -> str:
    return f"{side}.{_name(name)}"


def _name(name: str) -> str:
    return f"`{name}`"


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
