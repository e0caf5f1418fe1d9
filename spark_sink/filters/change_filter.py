"""The change filter: it keeps records that change a column that a pipeline asks for.

An update changes the columns that its values name: which of the two lists them depends on the value
capture type (Spanner's documentation, "Change streams overview", "Value capture types"). With
NEW_ROW neither does, so such an update is refused. An insert and a delete change all columns of
their table. They are judged by the table's name alone, because column_types may lack columns.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import UnknownChangesError
from slackwater.spark_sink.filters.column_filter import ColumnFilter, member_names
from slackwater.spark_sink.filters.globs import joined, matching, table_globs

if TYPE_CHECKING:
    from pyarrow import BooleanArray, RecordBatch

# The part of a mod that names the columns which an update changed, by value capture type.
CHANGED_PART: Final[Mapping[str, str]] = {
    "OLD_AND_NEW_VALUES": "new_values",
    "NEW_VALUES": "new_values",
    "NEW_ROW_AND_OLD_VALUES": "old_values",
}
_UPDATE: Final = "UPDATE"
_ASKED: Final = ("table_name", "mod_type", "value_capture_type", "mods")


@dataclass(frozen=True)
class ChangeFilter:
    """A filter of records that change one of some columns.

    Attributes:
        when_changed: globs of full column names, as in ColumnFilter.

    Raises:
        ValueError: a glob lacks the dot.
    """

    when_changed: tuple[str, ...]

    def __post_init__(self) -> None:
        # Report a wrong glob now, and not when the first record arrives.
        assert self._columns is not None  # noqa: S101 - made for its check

    def keeps(self, row: Mapping[str, Any]) -> bool:
        """Return whether one of a record's mods changes one of the columns.

        Args:
            row: of the output's contract.

        Raises:
            UnknownChangesError: it is an update that does not tell which columns it changed.
            ValueError: a mod's values are not a JSON object.
        """
        table = row["table_name"]
        if not self.keeps_table(table):
            return False
        if row["mod_type"] != _UPDATE:
            return True
        part = CHANGED_PART.get(row["value_capture_type"])
        if part is None:
            raise _unknown_changes()
        return any(
            self._columns.keeps(table, name)
            for mod in row["mods"]
            for name in member_names(mod[part])
        )

    def mask(self, records: RecordBatch, chosen: BooleanArray) -> BooleanArray:
        """Return which of the chosen records of a batch are kept; errors are those of keeps()."""
        import pyarrow as pa
        import pyarrow.compute as pc

        chosen = pc.and_(chosen, matching(records["table_name"], self._table_pattern))
        is_update = pc.equal(records["mod_type"], _UPDATE)
        updates = pc.and_(chosen, is_update)
        asked = records.select(_ASKED).filter(updates)
        changes = pa.array([self.keeps(row) for row in asked.to_pylist()], pa.bool_())
        return pc.replace_with_mask(chosen, updates, changes)

    def keeps_table(self, table: str) -> bool:
        """Return whether a table may have one of the columns, by its full name."""
        return re.fullmatch(self._table_pattern, table, re.DOTALL) is not None

    @cached_property
    def _columns(self) -> ColumnFilter:
        return ColumnFilter(columns=self.when_changed)

    @cached_property
    def _table_pattern(self) -> str:
        tables = dict.fromkeys(table for glob in self.when_changed for table in table_globs(glob))
        return joined(tuple(tables))


def require_shown_changes(capture_type: str) -> None:
    """Refuse a value capture type that does not tell which columns an update changed.

    Args:
        capture_type: a change stream's.

    Raises:
        UnknownChangesError: it is such a type.
    """
    if capture_type not in CHANGED_PART:
        raise _unknown_changes()


def _unknown_changes() -> UnknownChangesError:
    *others, last = CHANGED_PART
    return UnknownChangesError(
        "filter.when_changed needs to know which columns an update changed, and the change stream"
        f" does not tell: its value capture type is, or was, not {', '.join(others)} or {last}.",
        "Set one of them: ALTER CHANGE STREAM … SET OPTIONS (value_capture_type ="
        f" '{last}'). If updates were captured otherwise meanwhile, leave filter.when_changed out"
        " until they are written",
    )
