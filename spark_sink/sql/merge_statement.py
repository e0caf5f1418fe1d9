"""The MERGE that applies an epoch's latest changes to a mirror."""
# ruff: noqa: S608 - this module builds statements; names and texts in them are quoted

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier, literal, timestamp_literal

IS_DELETED: Final = "_is_deleted"
CHANGED_AT: Final = "_commit_timestamp"
# The extra columns of a mirror that keeps deleted rows.
SOFT_DELETE_COLUMNS: Final[Mapping[str, str]] = {IS_DELETED: "BOOLEAN", CHANGED_AT: "TIMESTAMP"}
_SOFT_DELETE_VALUES: Final[Mapping[str, str]] = {
    IS_DELETED: "latest.deleted",
    CHANGED_AT: "latest.commit_timestamp",
}


def merge_statement(
    target: str,
    source: str,
    columns: Sequence[Column],
    *,
    keeps_deleted: bool,
    cleared_at: datetime | None = None,
) -> str:
    """Return the MERGE statement in Spark SQL.

    Args:
        target: the mirror's quoted name.
        source: a view with the columns of latest_changes().
        columns: the columns of its row.
        keeps_deleted: a deleted row stays with its last values, and is marked as deleted.
        cleared_at: rows that the view does not have are deleted, as of this time: they are those
            of a former table. None if they stay.
    """
    return "\n".join(
        [
            f"MERGE INTO {target} AS mirror USING {source} AS latest ON {_same_key(columns)}",
            *(_mark_deleted_clauses(columns) if keeps_deleted else _delete_clauses(columns)),
            *_other_rows_clauses(columns, keeps_deleted=keeps_deleted, cleared_at=cleared_at),
        ]
    )


def forget_statement(
    target: str,
    columns: Sequence[Column],
    *,
    keeps_deleted: bool,
    cleared_at: datetime | None = None,
) -> str:
    """Return the MERGE that drops what former tables and columns left, without any change.

    Args:
        target: the mirror's quoted name.
        columns: those of which some are absent_at a time.
        keeps_deleted, cleared_at: see merge_statement().
    """
    clauses = _other_rows_clauses(columns, keeps_deleted=keeps_deleted, cleared_at=cleared_at)
    nothing = "(SELECT 1 AS nothing WHERE false) AS latest"
    return "\n".join([f"MERGE INTO {target} AS mirror USING {nothing} ON false", *clauses])


def _other_rows_clauses(
    columns: Sequence[Column], *, keeps_deleted: bool, cleared_at: datetime | None
) -> list[str]:
    """Return what becomes of the rows that the epoch does not change."""
    others = "WHEN NOT MATCHED BY SOURCE"
    if cleared_at is None:
        cleared = {c.name: "NULL" for c in columns if c.absent_at is not None}
        return [f"{others} THEN UPDATE SET {_assignments(cleared)}"] if cleared else []
    if not keeps_deleted:
        return [f"{others} THEN DELETE"]
    mark = {IS_DELETED: "true", CHANGED_AT: timestamp_literal(cleared_at)}
    return [
        f"{others} AND NOT mirror.{identifier(IS_DELETED)} THEN UPDATE SET {_assignments(mark)}"
    ]


def _delete_clauses(columns: Sequence[Column]) -> list[str]:
    whole, changed = _whole_row(columns), _changed_columns(columns)
    # All columns of a table may belong to its key.
    updates = [
        f"WHEN MATCHED AND latest.whole THEN UPDATE SET {_assignments(whole)}",
        f"WHEN MATCHED THEN UPDATE SET {_assignments(changed)}",
    ]
    insert = f"WHEN NOT MATCHED AND NOT latest.deleted THEN {_insert_action(_row(columns))}"
    return [
        "WHEN MATCHED AND latest.deleted THEN DELETE",
        *(updates if whole else ()),
        # The record of a delete may name no column but those of the key, and a table may have none.
        *([insert] if columns else ()),
    ]


def _mark_deleted_clauses(columns: Sequence[Column]) -> list[str]:
    mark = dict(_SOFT_DELETE_VALUES)
    return [
        f"WHEN MATCHED AND latest.deleted THEN UPDATE SET {_assignments(mark)}",
        f"WHEN MATCHED AND latest.whole THEN UPDATE SET {_assignments(_whole_row(columns) | mark)}",
        f"WHEN MATCHED THEN UPDATE SET {_assignments(_changed_columns(columns) | mark)}",
        f"WHEN NOT MATCHED THEN {_insert_action(_row(columns) | mark)}",
    ]


def _same_key(columns: Sequence[Column]) -> str:
    """Return the join condition; a table without a key has at most one row."""
    return (
        # <=> because keys may be NULL.
        " AND ".join(_same_value(column) for column in columns if column.is_key) or "TRUE"
    )


def _same_value(column: Column) -> str:
    return f"mirror.{identifier(column.name)} <=> {_new_value(column)}"


def _row(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: _new_value(column) for column in columns}


def _whole_row(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: _new_value(column) for column in columns if column.is_set_by_update}


def _changed_columns(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: _changed_value(column) for column in columns if column.is_set_by_update}


def _changed_value(column: Column) -> str:
    if column.is_key:
        return _new_value(column)
    unchanged = "NULL" if column.absent_at else f"mirror.{identifier(column.name)}"
    return (
        f"CASE WHEN map_contains_key(latest.changed_columns, {literal(column.name)})"
        f" THEN {_new_value(column)} ELSE {unchanged} END"
    )


def _new_value(column: Column) -> str:
    return f"latest.row.{identifier(column.name)}"


def _assignments(values: Mapping[str, str]) -> str:
    return ", ".join(f"mirror.{identifier(name)} = {value}" for name, value in values.items())


def _insert_action(values: Mapping[str, str]) -> str:
    names = ", ".join(map(identifier, values))
    return f"INSERT ({names}) VALUES ({', '.join(values.values())})"
