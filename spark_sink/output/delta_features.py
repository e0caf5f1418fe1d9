"""What a Delta table may have that delta-rs can't write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from deltalake import DeltaTable

# With it, columns have other names in the files.
COLUMN_MAPPING: Final = "delta.columnMapping.mode"
# In what delta-rs says of a table that it can't write, one with features that it does not know too.
_UNSUPPORTED: Final = ("Unsupported", "append-only", "appendOnly")


def has_column_mapping(table: DeltaTable) -> bool:
    """Return whether a table's files have other names for its columns."""
    return table.metadata().configuration.get(COLUMN_MAPPING, "none") != "none"


def is_unsupported(error: Exception) -> bool:
    """Return whether an error of delta-rs says that it can't write the table."""
    return any(word in str(error) for word in _UNSUPPORTED)
