"""Typed changes made of data change records: the JSON of their mods as Arrow columns."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.errors import ColumnTypeError
from slackwater.reader.typed_schema import (
    AFTER,
    BEFORE,
    GIVEN,
    KEY,
    MOD_NUMBER,
    MOD_TYPE_WITHOUT,
    STRUCTS,
)
from slackwater.typed_values import ValueTypeError, arrow_array

_SOURCES: Final = {KEY: "keys", BEFORE: "old_values", AFTER: "new_values"}

Values = Mapping[str, Any]


def typed_changes(records: pa.RecordBatch, table: str, schema: pa.Schema) -> pa.RecordBatch:
    """Return a row for each mod of a table's records.

    Args:
        records: rows of the output's schema; those of other tables are left out.
        table: the table's full name.
        schema: as typed_schema makes it. A column that it lacks is left out, and one that a mod
            says nothing of is NULL.

    Raises:
        ColumnTypeError: a value is not of its column's type.
    """
    chosen = records.filter(pc.equal(records.column("table_name"), table))
    mods = chosen.column("mods")
    copied = [name for name in schema.names if name in records.schema.names]
    rows = chosen.select(copied).take(pc.list_parent_indices(mods))
    lengths = pc.list_value_length(mods).to_numpy()
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns: dict[str, pa.Array] = {
        MOD_NUMBER.name: pa.array(np.arange(len(first)) - first, MOD_NUMBER.type),
        **_structs(mods.flatten(), rows.column("mod_type").to_pylist(), table, schema),
    }
    columns.update((name, rows.column(name)) for name in copied)
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _structs(
    mods: pa.StructArray, mod_types: Sequence[str], table: str, schema: pa.Schema
) -> dict[str, pa.Array]:
    """Return the columns that are made of the mods' values."""
    said = {part: list(map(_loads, mods.field(_SOURCES[part]).to_pylist())) for part in STRUCTS}
    missing = {
        part: [mod_type == MOD_TYPE_WITHOUT.get(part) for mod_type in mod_types] for part in STRUCTS
    }
    key = {field.name for field in schema.field(KEY).type} if KEY in schema.names else set()
    columns = {
        part: _struct(schema.field(part), said[KEY], said[part], missing[part], key, table)
        for part in STRUCTS
        if part in schema.names
    }
    return {**columns, GIVEN.name: _named_columns(schema, said, missing, key)}


def _struct(
    struct: pa.Field,
    keys: Sequence[Values],
    said: Sequence[Values],
    missing: Sequence[bool],
    key: Collection[str],
    table: str,
) -> pa.Array:
    arrays = [
        _column(field, keys if field.name in key else said, f"{table}.{field.name}")
        for field in struct.type
    ]
    return pa.StructArray.from_arrays(
        arrays, fields=list(struct.type), mask=pa.array(missing, pa.bool_())
    )


def _column(field: pa.Field, rows: Sequence[Values], name: str) -> pa.Array:
    try:
        return arrow_array([row.get(field.name) for row in rows], field.type)
    except ValueTypeError as error:
        raise ColumnTypeError(
            f"column {name}: {error}.",
            "The column had another type. If it was changed after the source was loaded, load the"
            " source again; otherwise start after the change, or leave out the option table",
        ) from error


def _named_columns(
    schema: pa.Schema,
    said: Mapping[str, Sequence[Values]],
    missing: Mapping[str, Sequence[bool]],
    key: Collection[str],
) -> pa.Array:
    struct = schema.field(GIVEN.name).type
    names = [field.name for field in schema.field(AFTER).type if field.name not in key]
    lists = [
        pa.array(
            [
                None if is_missing else [name for name in names if name in values]
                for values, is_missing in zip(said[part], missing[part], strict=True)
            ],
            struct.field(part).type,
        )
        for part in (BEFORE, AFTER)
    ]
    return pa.StructArray.from_arrays(lists, fields=list(struct))


def _loads(text: str | None) -> Values:
    values: Values = orjson.loads(text) if text else {}
    return values
