"""The conversion of column values from the JSON of Spanner's mods to plain JSON.

Spanner writes an INT64 or a NUMERIC as a string, so that no reader rounds it, and a JSON column as
a string that holds JSON; see "Data change records" in its documentation. Here they become numbers
with all their digits, and JSON. Values of other types stay as Spanner wrote them.
"""

import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import orjson

# Converts a timestamp of a record to a message's.
TimestampFormat = Callable[[datetime], Any]
Values = dict[str, Any]
Convert = Callable[[Any], Any]
# Returns the conversion of values, from the JSON of their column type.
Converter = Callable[[str], Convert]
# A JSON null, as CockroachDB's changefeeds write it with encode_json_value_null_as_object.
_NULL_OBJECT: Final = orjson.Fragment('{"__crdb_json_null__":true}')
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


def row_values(
    text: str | None,
    column_types: Sequence[Mapping[str, Any]],
    converter: Converter,
) -> Values:
    """Parse a JSON object of columns, and return its values in the order of column_types.

    Args:
        text: keys, new_values or old_values of a mod.
        column_types: of the record.
        converter: returns the conversion of a column type's values.

    Raises:
        ValueError: text is not a JSON object.
    """
    values = orjson.loads(text) if text else {}
    if not isinstance(values, dict):
        raise ValueError(f"{text!r} is not a JSON object")  # noqa: TRY004 - of Spanner's
    converted = {}
    for column in column_types:
        name = column["name"]
        if name in values:
            converted[name] = converter(column["type"])(values.pop(name))
    # A column that the record does not describe stays as it is.
    return {**converted, **values}


@lru_cache(maxsize=10_000)
def json_converter(type_json: str) -> Convert:
    """Return the conversion of a column type's values to plain JSON."""
    return _convert(parsed_type(type_json), _BY_CODE)


@lru_cache(maxsize=10_000)
def connect_converter(type_json: str) -> Convert:
    """Return a conversion for Kafka Connect: a NUMERIC and a JSON stay strings."""
    return _convert(parsed_type(type_json), {"INT64": _integer, "FLOAT32": _float32})


@lru_cache(maxsize=10_000)
def null_object_converter(type_json: str) -> Convert:
    """Return json_converter's conversion, with an object for a JSON null, to tell it from NULL."""
    return _convert(parsed_type(type_json), {**_BY_CODE, "JSON": _json_or_null_object})


def parsed_type(type_json: str) -> Any:
    """Return a column's type from the JSON of a data change record; None if it is not JSON."""
    try:
        return orjson.loads(type_json)
    except orjson.JSONDecodeError:
        return None


def _convert(kind: Any, by_code: Mapping[str, Convert]) -> Convert:
    code = kind.get("code") if isinstance(kind, dict) else None
    if code == "ARRAY":
        item = _convert(kind.get("array_element_type"), by_code)
        return lambda value: [item(v) for v in value] if isinstance(value, list) else value
    return by_code.get(str(code), _unchanged)


def _unchanged(value: Any) -> Any:
    return value


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def _float32(value: Any) -> Any:
    """Return the shortest number that a FLOAT32 is read from; Spanner sends that of a FLOAT64."""
    if not isinstance(value, float):
        return value
    single = struct.unpack("f", struct.pack("f", value))
    texts = (f"{value:.{digits}g}" for digits in range(6, 10))
    return next(float(t) for t in texts if struct.unpack("f", struct.pack("f", float(t))) == single)


def _number(value: Any) -> Any:
    """Return a decimal with its own spelling; NaN, which JSON does not have, stays a string."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return orjson.Fragment(value)
    return value


def _json(value: Any) -> Any:
    return orjson.Fragment(value) if isinstance(value, str) and _is_json(value) else value


def _json_or_null_object(value: Any) -> Any:
    return _NULL_OBJECT if value == "null" else _json(value)


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        # A jsonb may have a number beyond those of a double, which orjson refuses.
        return _is_json_with_any_number(text)
    return True


def _is_json_with_any_number(text: str) -> bool:
    try:
        json.loads(text, parse_float=str, parse_int=str, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return True


def _refuse(constant: str) -> None:
    """Refuse NaN and Infinity, which Python's parser takes, and JSON does not have."""
    raise ValueError(constant)


_BY_CODE: Final[Mapping[str, Convert]] = {"INT64": _integer, "NUMERIC": _number, "JSON": _json}
