"""Column values: from the JSON of Spanner's mods to what JSON can say itself.

Spanner writes an INT64 or a NUMERIC as a string, so that no reader rounds it, and a JSON column as
a string that holds JSON; see "Data change records" in its documentation. What a type says is kept
exactly; a type that is not known here stays as Spanner wrote it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

import orjson

# What a timestamp of a record becomes in a message.
TimestampFormat = Callable[[datetime], Any]
Values = dict[str, Any]
Convert = Callable[[Any], Any]
# From the JSON of a column type to the conversion of its values.
Converter = Callable[[str], Convert]
_NUMBER: Final = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


def row_values(
    text: str | None,
    column_types: Sequence[Mapping[str, Any]],
    converter: Converter,
) -> Values:
    """The values of a JSON object of columns, in the order in which Spanner lists the columns.

    Args:
        text: keys, new_values or old_values of a mod.
        column_types: of the record.
        converter: gives the conversion of values of a column type.

    Raises:
        ValueError: text is no JSON object.
    """
    given = orjson.loads(text) if text else {}
    if not isinstance(given, dict):
        raise ValueError(f"{text!r} is no JSON object")  # noqa: TRY004 - of Spanner's
    found = {}
    for column in column_types:
        name = column["name"]
        if name in given:
            found[name] = converter(column["type"])(given.pop(name))
    # A column that the record does not describe stays as it is.
    return {**found, **given}


@lru_cache(maxsize=10_000)
def json_converter(type_json: str) -> Convert:
    """To what JSON can say itself."""
    try:
        kind = orjson.loads(type_json)
    except orjson.JSONDecodeError:
        return _same
    return _convert(kind)


def _convert(kind: Any) -> Convert:
    code = kind.get("code") if isinstance(kind, dict) else None
    if code == "ARRAY":
        item = _convert(kind.get("array_element_type"))
        return lambda value: [item(v) for v in value] if isinstance(value, list) else value
    return _BY_CODE.get(str(code), _same)


def _same(value: Any) -> Any:
    return value


def _integer(value: Any) -> Any:
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value


def _number(value: Any) -> Any:
    """A decimal with its own spelling; NaN, which JSON has not, stays a string."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return orjson.Fragment(value)
    return value


def _json(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return value
    return orjson.Fragment(value)


_BY_CODE: Final[Mapping[str, Convert]] = {"INT64": _integer, "NUMERIC": _number, "JSON": _json}
