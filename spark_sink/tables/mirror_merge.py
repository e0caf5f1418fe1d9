"""The merge of an epoch's rows into a mirror, as SQL; databases differ in names, values and keys.

The effect on each row is that of row_merges.merged_rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.row_changes import (
    CHANGED_AT,
    COMMIT_TIMESTAMP,
    IS_DELETED,
    IS_MARKED_DELETED,
)
from slackwater.spark_sink.tables.table_changes import MergePolicy
from slackwater.timestamp import datetime_to_us


@dataclass(frozen=True, slots=True)
class MirrorMerge(ABC):
    """The merge of staged rows into one mirror.

    Attributes:
        target: the mirror's name, or its id.
        columns: those of the staged rows that the mirror has.
        key: the key's columns.
        updated: the columns that an update sets.
        absent: the columns whose earlier values are gone.
        are_kept: a deleted row stays, marked as deleted.
        cleared_at_us: rows that are not staged are deleted as of this time, in microseconds; None
            if they stay.
        deletes_apart: a MERGE has one kind of change to rows that match.
        not_matched: begins the part of a MERGE for new rows.
    """

    target: str
    columns: Sequence[str]
    key: Sequence[str] = ()
    updated: Sequence[str] = ()
    absent: Sequence[str] = ()
    are_kept: bool = False
    cleared_at_us: int | None = None
    deletes_apart: bool = False
    not_matched: ClassVar[str] = "WHEN NOT MATCHED"

    @property
    @abstractmethod
    def _mirror(self) -> str:
        """The mirror in SQL."""

    @abstractmethod
    def _matches(self) -> list[tuple[str, str]]:
        """Return parts of the staged rows as s, each with the condition for t to have its key."""

    @abstractmethod
    def _name(self, column: str) -> str:
        """Return the name of a mirror's column in SQL."""

    @abstractmethod
    def _staged(self, name: str) -> str:
        """Return what a staged row has in a column of latest_rows(), as the mirror has it."""

    @abstractmethod
    def _is_changed(self, column: str) -> str:
        """Return whether the changes of a row have a value of a column."""

    @abstractmethod
    def _time(self, time_us: int) -> str:
        """Return a time in SQL."""

    def statements(self) -> list[str]:
        """Return the statements: for rows that are not staged, and for those that are."""
        matches = self._matches()
        absent = (f"NOT EXISTS (SELECT 1 FROM {staged} WHERE {on})" for staged, on in matches)
        unstaged = " AND ".join(absent) or "TRUE"
        merges = (merge for staged, on in matches for merge in self._merges(staged, on))
        return [*self._others(unstaged), *merges]

    def _merges(self, staged: str, on: str) -> list[str]:
        is_deleted = self._staged(IS_DELETED)
        marks = {}
        if self.are_kept:
            marks = {IS_MARKED_DELETED: is_deleted, CHANGED_AT: self._staged(COMMIT_TIMESTAMP)}
        updates = {name: self._updated(name) for name in self.updated} | marks
        inserts = {name: self._staged(name) for name in self.columns} | marks
        condition = "" if self.are_kept else f" AND NOT {is_deleted}"
        deletes = [] if self.are_kept else [f"WHEN MATCHED AND {is_deleted} THEN DELETE"]
        clauses = [
            f"{self.not_matched}{condition} THEN INSERT ({', '.join(map(self._name, inserts))})"
            f" VALUES ({', '.join(inserts.values())})"
        ]
        if updates:
            clauses.insert(0, f"WHEN MATCHED{condition} THEN UPDATE {self._set(updates)}")
        merges = [deletes, clauses] if self.deletes_apart else [[*deletes, *clauses]]
        begin = f"MERGE INTO {self._mirror} AS t USING {staged} ON {on}"
        return ["\n".join([begin, *merge]) for merge in merges if merge]

    def _updated(self, column: str) -> str:
        is_deleted = self._staged(IS_DELETED)
        old, is_new = f"t.{self._name(column)}", self._is_changed(column)
        if self.are_kept:
            is_new = f"NOT {is_deleted} AND ({is_new})"
        if column in self.absent:
            old = f"CASE WHEN {is_deleted} THEN {old} END"
        return f"CASE WHEN {is_new} THEN {self._staged(column)} ELSE {old} END"

    def _others(self, condition: str) -> list[str]:
        """Return the statement for rows that are not staged; none if they stay as they are."""
        if self.cleared_at_us is not None and not self.are_kept:
            return [f"DELETE FROM {self._mirror} AS t WHERE {condition}"]
        sets = dict.fromkeys(self.absent, "NULL")
        if self.cleared_at_us is not None:
            is_marked, at = (f"t.{self._name(name)}" for name in (IS_MARKED_DELETED, CHANGED_AT))
            cleared = self._time(self.cleared_at_us)
            marked_at = f"CASE WHEN {is_marked} THEN {at} ELSE {cleared} END"
            sets = {CHANGED_AT: marked_at, IS_MARKED_DELETED: "TRUE"}
        update = f"UPDATE {self._mirror} AS t {self._set(sets)} WHERE {condition}"
        return [update] if sets else []

    def _set(self, values: Mapping[str, str]) -> str:
        return "SET " + ", ".join(f"{self._name(name)} = {value}" for name, value in values.items())


def merge_fields(columns: Sequence[Column], policy: MergePolicy) -> dict[str, Any]:
    """Return the fields of an epoch's MirrorMerge.

    Args:
        columns: of the rows, which the mirror has.
        policy: for deleted and unchanged rows.
    """
    cleared = policy.cleared_at
    return {
        "columns": [column.name for column in columns],
        "key": [column.name for column in columns if column.is_key],
        "updated": [column.name for column in columns if column.is_set_by_update],
        "absent": [column.name for column in columns if column.absent_at is not None],
        "are_kept": policy.are_kept,
        "cleared_at_us": None if cleared is None else datetime_to_us(cleared),
    }
