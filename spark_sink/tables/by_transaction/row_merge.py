"""The merge of an epoch's rows into a mirror, as SQL.

The effect on each row is that of row_merges.merged_rows. PostgreSQL's documentation: "MERGE".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow as pa

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.by_transaction.names import identifier, literal
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
from slackwater.timestamp import datetime_to_rfc3339


@dataclass(frozen=True, slots=True)
class RowMerge:
    """The merge of changes into one mirror.

    Attributes:
        target: the mirror's name in SQL.
        staged: the name of the temporary table with the rows; None for no rows.
        names: the columns of that table in SQL, by those of latest_rows().
        columns: of the rows, which the mirror has.
        policy: for deleted and unchanged rows.
        has_null_keys: a key has a part that is NULL.
        casts: the types in SQL of columns that staged texts are cast to, by their names.
        deletes_apart: a MERGE has one kind of change to rows that match (DuckLake's documentation,
            "Upserting").
    """

    target: str
    staged: str | None
    names: Mapping[str, str]
    columns: Sequence[Column]
    policy: MergePolicy
    has_null_keys: bool
    casts: Mapping[str, str] = field(default_factory=dict)
    deletes_apart: bool = False

    def statements(self) -> list[str]:
        """Return the statements: for rows that are not staged, and for those that are."""
        if self.staged is None:
            return self._others("TRUE")
        matches = self._matches()
        unstaged = " AND ".join(f"NOT EXISTS (SELECT 1 FROM {s} WHERE {on})" for s, on in matches)
        merges = (statement for s, on in matches for statement in self._merges(s, on))
        return [*self._others(unstaged), *merges]

    def _matches(self) -> list[tuple[str, str]]:
        """Return parts of the staged rows, each with the condition for the row of its key.

        Keys with NULL are a part of their own: an index does not help to find them.
        """
        key = [c.name for c in self.columns if c.is_key]
        equal = " AND ".join(f"t.{identifier(name)} = {self._of(name)}" for name in key) or "TRUE"
        if not self.has_null_keys:
            return [(f"{self.staged} AS s", equal)]
        whole = " AND ".join(f"{self.names[name]} IS NOT NULL" for name in key)
        same = " AND ".join(
            f"t.{identifier(name)} IS NOT DISTINCT FROM {self._of(name)}" for name in key
        )
        return [
            (f"(SELECT * FROM {self.staged} WHERE {whole}) AS s", equal),
            (f"(SELECT * FROM {self.staged} WHERE NOT ({whole})) AS s", same),
        ]

    def _merges(self, staged: str, on: str) -> list[str]:
        is_deleted, are_kept = self._of(IS_DELETED), self.policy.are_kept
        marks = {}
        if are_kept:
            marks = {IS_MARKED_DELETED: is_deleted, CHANGED_AT: self._of(COMMIT_TIMESTAMP)}
        updates = {c.name: self._updated(c) for c in self.columns if c.is_set_by_update} | marks
        inserts = {c.name: self._of(c.name) for c in self.columns} | marks
        condition = "" if are_kept else f" AND NOT {is_deleted}"
        deletes = [] if are_kept else [f"WHEN MATCHED AND {is_deleted} THEN DELETE"]
        clauses = [
            f"WHEN NOT MATCHED{condition} THEN INSERT ({', '.join(map(identifier, inserts))})"
            f" VALUES ({', '.join(inserts.values())})"
        ]
        if updates:
            clauses.insert(0, f"WHEN MATCHED{condition} THEN UPDATE {_set(updates)}")
        merges = [deletes, clauses] if self.deletes_apart else [[*deletes, *clauses]]
        begin = f"MERGE INTO {self.target} AS t USING {staged} ON {on}"
        return ["\n".join([begin, *merge]) for merge in merges if merge]

    def _updated(self, column: Column) -> str:
        is_deleted = self._of(IS_DELETED)
        old, new = f"t.{identifier(column.name)}", self._of(column.name)
        is_new = self._of(IS_WHOLE)
        if (flag := self.names.get(IS_CHANGED + column.name)) is not None:
            is_new = f"({is_new} OR s.{flag})"
        if self.policy.are_kept:
            is_new = f"NOT {is_deleted} AND {is_new}"
        if column.absent_at is not None:
            old = f"CASE WHEN {is_deleted} THEN {old} END"
        return f"CASE WHEN {is_new} THEN {new} ELSE {old} END"

    def _others(self, condition: str) -> list[str]:
        """Return the statement for rows that are not staged; none if they stay as they are."""
        cleared_at = self.policy.cleared_at
        if cleared_at is not None and not self.policy.are_kept:
            return [f"DELETE FROM {self.target} AS t WHERE {condition}"]
        sets = {c.name: "NULL" for c in self.columns if c.absent_at is not None}
        if cleared_at is not None:
            sets = {CHANGED_AT: _marked_at(cleared_at), IS_MARKED_DELETED: "TRUE"}
        return [f"UPDATE {self.target} AS t {_set(sets)} WHERE {condition}"] if sets else []

    def _of(self, name: str) -> str:
        return f"s.{self.names[name]}{cast(name, self.casts)}"


def staged_rows(rows: pa.Table) -> tuple[pa.Table, dict[str, str]]:
    """Return rows as they are staged, and the names there in SQL by those of latest_rows().

    With the beginning of IS_CHANGED a name could be too long.
    """
    names = [
        f"{LATEST}{number}" if name.startswith(IS_CHANGED) else name
        for number, name in enumerate(rows.column_names)
    ]
    staged = rows.rename_columns(names)
    return staged, dict(zip(rows.column_names, map(identifier, names), strict=True))


def cast(name: str, casts: Mapping[str, str]) -> str:
    """Return what follows a staged value of a column in SQL."""
    return f"::{casts[name]}" if name in casts else ""


def _marked_at(cleared_at: datetime) -> str:
    is_marked, at = (f"t.{identifier(name)}" for name in (IS_MARKED_DELETED, CHANGED_AT))
    cleared = f"{literal(datetime_to_rfc3339(cleared_at))}::timestamptz"
    return f"CASE WHEN {is_marked} THEN {at} ELSE {cleared} END"


def _set(values: Mapping[str, str]) -> str:
    return "SET " + ", ".join(f"{identifier(name)} = {value}" for name, value in values.items())
