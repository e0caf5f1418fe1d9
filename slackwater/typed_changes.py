"""Typed changes: each mod of a table's records as a row of typed columns, in Arrow.

Sink and source share this: a typed changelog and a notebook show a change in the same way.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.typed_values import ValueTypeError, arrow_array, is_of_type

KEY: Final = "key"
BEFORE: Final = "before"
AFTER: Final = "after"
# The struct columns with a table's columns, each with the field of a mod that it is made from.
SOURCES: Final = {KEY: "keys", BEFORE: "old_values", AFTER: "new_values"}
# The mod type whose changes have no such row.
_MOD_TYPE_WITHOUT: Final = {BEFORE: "INSERT", AFTER: "DELETE"}
MOD_NUMBER: Final = pa.field("mod_number", pa.int32())
# The names of the columns that a change has; it says nothing of the others.
NAMED_COLUMNS: Final = pa.field(
    "given", pa.struct([(BEFORE, pa.list_(pa.string())), (AFTER, pa.list_(pa.string()))])
)
BAD_COLUMNS: Final = pa.field("bad_columns", pa.list_(pa.string()))
# The most converted at once: Spark's batches have 10,000 records, of any number of mods.
MODS_MAX: Final = 10_000

Values = Mapping[str, Any]


class ColumnValueError(ValueError):
    """A value is not of its column's type; the message names both."""


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """The columns of a table's records.

    Attributes:
        key: those of the primary key.
        names: as the records have them, by the names that typed changes have, where they differ.
        former_types: of columns that had other types in some records, JSON of those. A value of
            such a type is one of another column of the same name.
    """

    key: Collection[str]
    names: Mapping[str, str] = field(default_factory=dict)
    former_types: Mapping[str, Collection[str]] = field(default_factory=dict)

    def names_of_former(self, column_types: Sequence[Mapping[str, str]]) -> list[str]:
        """Return the columns of which a record has former ones' values."""
        types = self.former_types
        return [one["name"] for one in column_types if one["type"] in types.get(one["name"], ())]


def typed_changes(
    records: pa.RecordBatch,
    table: str,
    schema: pa.Schema,
    columns: RecordColumns | None = None,
    *,
    is_checked: bool = False,
) -> pa.RecordBatch:
    """Return a row for each mod of a table's records.

    Args:
        records: rows of the output's schema; those of other tables are left out.
        table: the table's full name.
        schema: of the typed changes. A column that it lacks is left out, and one without a
            value in a mod is NULL.
        columns: those of the records; None if they are the schema's. Values of former types are
            left out; then the records have column_types.
        is_checked: a value that is not of its column's type becomes NULL, and is reported in
            BAD_COLUMNS, which the batch has at its end.

    Raises:
        ColumnValueError: a value is not of its column's type, and that is not reported.
    """
    chosen = records.filter(pc.equal(records.column("table_name"), table))
    mods = chosen.column("mods")
    copied = [name for name in schema.names if name in records.schema.names]
    parents = pc.list_parent_indices(mods)
    rows = chosen.select(copied).take(parents)
    lengths = pc.list_value_length(mods).to_numpy()
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    mod_types = rows.column("mod_type").to_pylist()
    bad = [set[str]() for _ in mod_types] if is_checked else None
    typed = _Mods(table, mods.flatten(), mod_types, schema, columns, bad)
    if columns is not None and columns.former_types:
        by_record = list(map(columns.names_of_former, chosen.column("column_types").to_pylist()))
        typed.leave_out([by_record[parent] for parent in parents.to_pylist()])
    made: dict[str, pa.Array] = {
        MOD_NUMBER.name: pa.array(np.arange(len(first)) - first, MOD_NUMBER.type),
        **{part: typed.struct(schema.field(part)) for part in SOURCES if part in schema.names},
        NAMED_COLUMNS.name: typed.named_columns(),
    }
    made.update((name, rows.column(name)) for name in copied)
    if bad is None:
        return pa.RecordBatch.from_arrays([made[name] for name in schema.names], schema=schema)
    made[BAD_COLUMNS.name] = pa.array(map(sorted, bad), BAD_COLUMNS.type)
    checked = schema.append(BAD_COLUMNS)
    return pa.RecordBatch.from_arrays([made[name] for name in checked.names], schema=checked)


def in_pieces(records: pa.RecordBatch, mods_max: int = MODS_MAX) -> Iterator[pa.RecordBatch]:
    """Yield records in batches of about so many mods: while these are converted, memory has them.

    A record is not divided.
    """
    lengths = pc.list_value_length(records.column("mods")).to_numpy(zero_copy_only=False)
    starts = np.flatnonzero(np.diff(np.cumsum(lengths) // mods_max)) + 1
    for start, end in pairwise([0, *starts.tolist(), records.num_rows]):
        yield records.slice(start, end - start)


class _Mods:
    """The values of mods.

    Args:
        table, schema, columns: see typed_changes().
        mods: of the table's records.
        mod_types: their types.
        bad: takes for each the names of columns whose values are not of their types; None if such
            a value is an error.
    """

    def __init__(
        self,
        table: str,
        mods: pa.StructArray,
        mod_types: Sequence[str],
        schema: pa.Schema,
        columns: RecordColumns | None,
        bad: Sequence[set[str]] | None,
    ) -> None:
        self._table, self._bad = table, bad
        of_key = [item.name for item in schema.field(KEY).type] if KEY in schema.names else []
        self._columns = columns or RecordColumns(of_key)
        self._schema = schema
        self._key: dict[str, pa.Array] = {}
        self._said = {part: _loaded(mods.field(source)) for part, source in SOURCES.items()}
        self._missing = {
            part: [mod_type == _MOD_TYPE_WITHOUT.get(part) for mod_type in mod_types]
            for part in SOURCES
        }

    def leave_out(self, names: Sequence[Collection[str]]) -> None:
        """Leave the values of some columns out of each mod."""
        for rows in self._said.values():
            for row, left_out in zip(rows, names, strict=True):
                for name in left_out:
                    row.pop(name, None)

    def struct(self, struct: pa.Field) -> pa.Array:
        """Return the column of a struct."""
        arrays = [self._column(struct.name, item) for item in struct.type]
        missing = pa.array(self._missing[struct.name], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(struct.type), mask=missing)

    def _column(self, part: str, item: pa.Field) -> pa.Array:
        name = self._name(item)
        if name not in self._columns.key:
            return self._typed(name, item, self._said[part])
        # The same in all parts.
        if item.name not in self._key:
            self._key[item.name] = self._typed(name, item, self._said[KEY])
        return self._key[item.name]

    def _typed(self, name: str, item: pa.Field, rows: Sequence[Values]) -> pa.Array:
        values = [row.get(name) for row in rows]
        if all(value is None for value in values):
            return pa.nulls(len(values), item.type)
        try:
            return arrow_array(values, item.type)
        except ValueTypeError as error:
            if self._bad is None:
                raise ColumnValueError(f"column {self._table}.{name}: {error}.") from error
        is_good = [is_of_type(value, item.type) for value in values]
        for names, good in zip(self._bad, is_good, strict=True):
            if not good:
                names.add(name)
        good_values = [v if good else None for v, good in zip(values, is_good, strict=True)]
        return arrow_array(good_values, item.type)

    def named_columns(self) -> pa.Array:
        """Return for each mod the columns that it has a value of, except the key's."""
        struct = self._schema.field(NAMED_COLUMNS.name).type
        # A table whose columns were all filtered out has none.
        has_columns = AFTER in self._schema.names
        names = [self._name(item) for item in self._schema.field(AFTER).type] if has_columns else []
        others = [name for name in names if name not in self._columns.key]
        lists = [
            pa.array(
                [
                    None if is_missing else [name for name in others if name in values]
                    for values, is_missing in zip(
                        self._said[part], self._missing[part], strict=True
                    )
                ],
                struct.field(part).type,
            )
            for part in (BEFORE, AFTER)
        ]
        return pa.StructArray.from_arrays(lists, fields=list(struct))

    def _name(self, item: pa.Field) -> str:
        """Return a column's name in the records."""
        return self._columns.names.get(item.name, item.name)


def _loaded(texts: pa.Array) -> list[dict[str, Any]]:
    return [orjson.loads(text) if text else {} for text in texts.to_pylist()]
