"""The MERGE that brings a mirror to where an epoch's newest changes say."""
# ruff: noqa: S608 - statements are what this module makes; names and texts in them are quoted

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.text import identifier, literal

IS_DELETED: Final = "_is_deleted"
CHANGED_AT: Final = "_commit_timestamp"
# What a mirror that keeps deleted rows has beside the table's columns.
SOFT_DELETE: Final[Mapping[str, str]] = {IS_DELETED: "BOOLEAN", CHANGED_AT: "TIMESTAMP"}
_SOFT_DELETE_VALUES: Final[Mapping[str, str]] = {
    IS_DELETED: "newest.deleted",
    CHANGED_AT: "newest.commit_timestamp",
}


def merge_statement(
    target: str, source: str, columns: Sequence[Column], *, keeps_deleted: bool
) -> str:
    """The statement, in Spark SQL.

    Args:
        target: the mirror as Spark SQL names it.
        source: a view with the columns of newest_changes().
        columns: those of its row.
        keeps_deleted: a deleted row stays with the values that it had last, and is marked.
    """
    return "\n".join(
        [
            f"MERGE INTO {target} AS mirror USING {source} AS newest ON {_same_key(columns)}",
            *(_soft(columns) if keeps_deleted else _hard(columns)),
        ]
    )


def _hard(columns: Sequence[Column]) -> list[str]:
    whole, given = _whole_row(columns), _given_columns(columns)
    # A table may be nothing but its key.
    updates = [
        f"WHEN MATCHED AND newest.whole THEN UPDATE SET {_assigned(whole)}",
        f"WHEN MATCHED THEN UPDATE SET {_assigned(given)}",
    ]
    return [
        "WHEN MATCHED AND newest.deleted THEN DELETE",
        *(updates if whole else ()),
        f"WHEN NOT MATCHED AND NOT newest.deleted THEN {_inserted(_row(columns))}",
    ]


def _soft(columns: Sequence[Column]) -> list[str]:
    mark = dict(_SOFT_DELETE_VALUES)
    return [
        f"WHEN MATCHED AND newest.deleted THEN UPDATE SET {_assigned(mark)}",
        f"WHEN MATCHED AND newest.whole THEN UPDATE SET {_assigned(_whole_row(columns) | mark)}",
        f"WHEN MATCHED THEN UPDATE SET {_assigned(_given_columns(columns) | mark)}",
        f"WHEN NOT MATCHED THEN {_inserted(_row(columns) | mark)}",
    ]


def _same_key(columns: Sequence[Column]) -> str:
    """Keys may be NULL; a table without a key has one row at most."""
    return (
        " AND ".join(
            f"mirror.{identifier(column.name)} <=> {_new(column)}"
            for column in columns
            if column.is_key
        )
        or "TRUE"
    )


def _row(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: _new(column) for column in columns}


def _whole_row(columns: Sequence[Column]) -> dict[str, str]:
    return {column.name: _new(column) for column in columns if not column.is_key}


def _given_columns(columns: Sequence[Column]) -> dict[str, str]:
    return {
        column.name: f"CASE WHEN map_contains_key(newest.given, {literal(column.name)})"
        f" THEN {_new(column)} ELSE mirror.{identifier(column.name)} END"
        for column in columns
        if not column.is_key
    }


def _new(column: Column) -> str:
    return f"newest.row.{identifier(column.name)}"


def _assigned(values: Mapping[str, str]) -> str:
    return ", ".join(f"mirror.{identifier(name)} = {value}" for name, value in values.items())


def _inserted(values: Mapping[str, str]) -> str:
    names = ", ".join(map(identifier, values))
    return f"INSERT ({names}) VALUES ({', '.join(values.values())})"
