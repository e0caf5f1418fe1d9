"""Typed changes made of data change records: the JSON of their mods as Arrow columns."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
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
from slackwater.timestamp import ns_to_us, parse_rfc3339

_SOURCES: Final = {KEY: "keys", BEFORE: "old_values", AFTER: "new_values"}
# What conversions raise, Arrow's among them.
_NOT_OF_TYPE: Final = (ValueError, TypeError, ArithmeticError)

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
    convert = _converter(field.type)
    values = [row.get(field.name) for row in rows]
    try:
        return pa.array([convert(value) for value in values], field.type)
    except _NOT_OF_TYPE as error:
        bad = next(value for value in values if not _is_of_type(value, field.type))
        raise ColumnTypeError(
            f"column {name}: {bad!r} is not of type {field.type}.",
            "The column had another type. If it was changed after the source was loaded, load the"
            " source again; otherwise start after the change, or leave out the option table",
        ) from error


def _is_of_type(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([_converter(kind)(value)], kind)
    except _NOT_OF_TYPE:
        return False
    return True


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


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return what makes of a JSON value what Arrow takes; NULL stays None."""
    if pa.types.is_list(kind):
        return partial(_list, _converter(kind.value_type))
    return partial(_value, _CONVERTERS[kind.id])


def _value(convert: Callable[[Any], Any], value: Any) -> Any:
    return None if value is None else convert(value)


def _list(convert: Callable[[Any], Any], values: Any) -> list[Any] | None:
    if values is None:
        return None
    if not isinstance(values, list):
        raise TypeError(values)
    return list(map(convert, values))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError(value)
    return value


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError(value)
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError(value)
    return float(value)


def _timestamp_us(value: Any) -> int:
    return ns_to_us(parse_rfc3339(value))


def _bytes(value: Any) -> bytes:
    return b64decode(value, validate=True)


# Spanner writes INT64, NUMERIC, TIMESTAMP, DATE, BYTES, and the floats NaN and Infinity as strings.
_CONVERTERS: Final[Mapping[int, Callable[[Any], Any]]] = {
    pa.string().id: _text,
    pa.bool_().id: _boolean,
    pa.int64().id: _integer,
    pa.float32().id: _float,
    pa.float64().id: _float,
    pa.decimal128(38, 9).id: Decimal,
    pa.timestamp("us", tz="UTC").id: _timestamp_us,
    pa.date32().id: date.fromisoformat,
    pa.binary().id: _bytes,
}
