"""The merge of an epoch's rows into a mirror, as SQL (PostgreSQL's documentation: "MERGE")."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from slackwater.spark_sink.tables.by_transaction.names import identifier, literal
from slackwater.spark_sink.tables.mirror_merge import MirrorMerge
from slackwater.spark_sink.tables.row_merges.row_changes import IS_CHANGED, IS_WHOLE, LATEST
from slackwater.timestamp import datetime_to_rfc3339, us_to_datetime


@dataclass(frozen=True, slots=True)
class RowMerge(MirrorMerge):
    """The MirrorMerge of a mirror in a database with transactions over all tables.

    Attributes:
        staged: the name of the temporary table with the rows; None for no rows.
        names: the columns of that table in SQL, by those of latest_rows().
        has_null_keys: a key has a part that is NULL.
        casts: the types in SQL of columns that staged texts are cast to, by their names.
    """

    staged: str | None = None
    names: Mapping[str, str] = field(default_factory=dict)
    has_null_keys: bool = False
    casts: Mapping[str, str] = field(default_factory=dict)

    @property
    def _mirror(self) -> str:
        return self.target

    def _matches(self) -> list[tuple[str, str]]:
        """Return parts of the staged rows; see MirrorMerge.

        Keys with NULL are a part of their own: an index does not help to find them.
        """
        if self.staged is None:
            return []
        pairs = [(f"t.{identifier(name)}", self._staged(name)) for name in self.key]
        equal = " AND ".join(f"{of_mirror} = {staged}" for of_mirror, staged in pairs) or "TRUE"
        if not self.has_null_keys:
            return [(f"{self.staged} AS s", equal)]
        whole = " AND ".join(f"{self.names[name]} IS NOT NULL" for name in self.key)
        same = " AND ".join(
            f"{of_mirror} IS NOT DISTINCT FROM {staged}" for of_mirror, staged in pairs
        )
        return [
            (f"(SELECT * FROM {self.staged} WHERE {whole}) AS s", equal),
            (f"(SELECT * FROM {self.staged} WHERE NOT ({whole})) AS s", same),
        ]

    def _name(self, column: str) -> str:
        return identifier(column)

    def _staged(self, name: str) -> str:
        return f"s.{self.names[name]}{cast(name, self.casts)}"

    def _is_changed(self, column: str) -> str:
        whole, flag = self._staged(IS_WHOLE), self.names.get(IS_CHANGED + column)
        return whole if flag is None else f"{whole} OR s.{flag}"

    def _time(self, time_us: int) -> str:
        return f"{literal(datetime_to_rfc3339(us_to_datetime(time_us)))}::timestamptz"


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
