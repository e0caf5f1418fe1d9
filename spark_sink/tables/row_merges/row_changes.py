"""The effect of an epoch's changes on each row of a table.

The rules are those of sql.latest_changes, which expresses them in Spark SQL.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

# The columns of small_epoch.latest_rows() besides the table's begin with it. No mirror has a column
# of its table's that does, by mirror_table.require_own_names().
LATEST: Final = "_latest_"
IS_DELETED: Final = f"{LATEST}is_deleted"
IS_WHOLE: Final = f"{LATEST}is_whole"
COMMIT_TIMESTAMP: Final = f"{LATEST}commit_timestamp"
# Before the name of a column: whether the changes have a value of it.
IS_CHANGED: Final = f"{LATEST}is_changed_"
IS_MARKED_DELETED: Final = "_is_deleted"
CHANGED_AT: Final = "_commit_timestamp"
# The extra columns of a mirror that keeps deleted rows.
SOFT_DELETE_COLUMNS: Final[Mapping[str, str]] = {
    IS_MARKED_DELETED: "BOOLEAN",
    CHANGED_AT: "TIMESTAMP",
}


@dataclass(frozen=True, slots=True)
class Mod:
    """A change of one row.

    Attributes:
        key: JSON of the key.
        mod_type: INSERT, UPDATE or DELETE.
        is_whole: whether the value capture type captures whole rows.
        new_values: JSON of the values after the change; None for none.
        committed_us: its commit timestamp, in microseconds since the Unix epoch.
    """

    key: str
    mod_type: str
    is_whole: bool
    new_values: str | None
    committed_us: int


# An epoch has one for each row. The garbage collector lets go of a tuple with plain values; objects
# it would visit again and again.
class RowChange(NamedTuple):
    """The effect of an epoch on a row.

    Attributes:
        is_deleted: the row is gone.
        is_whole: the changes have the whole row: columns not in values are NULL.
        values: the JSON values that the changes have, by column.
        committed_us: the latest change's; see Mod.
    """

    is_deleted: bool
    is_whole: bool
    values: Mapping[str, Any]
    committed_us: int


def latest_by_key(mods: Iterable[Mod]) -> dict[str, RowChange]:
    """Return the effect of a table's mods, in their order, on each row, by the JSON of its key."""
    latest: dict[str, RowChange] = {}
    for mod in mods:
        latest[mod.key] = _after(latest.get(mod.key), mod)
    return latest


def _after(before: RowChange | None, mod: Mod) -> RowChange:
    if mod.mod_type == "DELETE":
        return RowChange(True, True, {}, mod.committed_us)
    values = orjson.loads(mod.new_values) if mod.new_values else {}
    if before is None or mod.mod_type == "INSERT" or mod.is_whole:
        is_whole = mod.mod_type == "INSERT" or mod.is_whole
        return RowChange(False, is_whole, values, mod.committed_us)
    return RowChange(False, before.is_whole, {**before.values, **values}, mod.committed_us)
