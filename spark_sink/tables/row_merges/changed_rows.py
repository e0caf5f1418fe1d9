"""The rows that a merge changes, before and after (Delta's protocol, "Change Data Files")."""

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_KIND: Final = "_change_type"


def changes_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of changed rows for those of a table."""
    return columns.append(pa.field(_KIND, pa.string()))


class ChangedRows:
    """A collector of changed rows.

    Attributes:
        tables: the rows, with the kind of change.
    """

    def __init__(self) -> None:
        self.tables: list[pa.Table] = []

    def inserted(self, rows: pa.Table) -> None:
        """Add rows that were not there before."""
        self._add(rows, "insert")

    def updated(self, before: pa.Table, after: pa.Table) -> None:
        """Add rows as they were, and as they are."""
        self._add(before, "update_preimage")
        self._add(after, "update_postimage")

    def deleted(self, rows: pa.Table) -> None:
        """Add deleted rows."""
        self._add(rows, "delete")

    def changed(self, before: pa.Table, after: pa.Table, are_deleted: pa.Array) -> None:
        """Add rows of which some are deleted, and the others as they are now."""
        self.deleted(before.filter(are_deleted))
        self.updated(before.filter(pc.invert(are_deleted)), after)

    def _add(self, rows: pa.Table, kind: str) -> None:
        if rows.num_rows:
            kinds = pa.repeat(pa.scalar(kind), rows.num_rows)
            self.tables.append(rows.append_column(_KIND, kinds))
