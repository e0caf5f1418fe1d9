"""The conversion of JSON values to the types of typed columns, in Spark SQL.

Values arrive as the texts that Spark makes of JSON values: strings without quotation marks, numbers
and arrays as they are written.
"""

import json
from functools import lru_cache
from typing import Any, Final

from slackwater.column_types import element_type, spark_type

# A session may take TIMESTAMP for one without a zone, and any session may read a view.
_CAST_TYPES: Final = {"TIMESTAMP": "TIMESTAMP_LTZ"}
_WITH_YEAR: Final = ("TIMESTAMP", "DATE")
# The codes of the types that have one of their own in Spark.
_CODES: Final = {
    spark_type(code): code
    for code in ("INT64", "FLOAT64", "FLOAT32", "BOOL", "TIMESTAMP", "DATE", "NUMERIC", "BYTES")
}
# JSON objects of columns, as maps of the values' texts.
VALUES: Final = "map<string, string>"
# A text that is not JSON of the type fails. Otherwise Spark makes it NULL.
_FAIL: Final = ", map('mode', 'FAILFAST')"


@lru_cache(maxsize=10_000)
def spanner_type(type_json: str) -> str:
    """Return the type of a change record's column as the information schema spells it.

    A type with a PostgreSQL annotation is named by it, such as PG_NUMERIC: it differs from the
    GoogleSQL type whose code it has.

    Args:
        type_json: the JSON of a column's type.
    """
    try:
        type_object = json.loads(type_json)
    except ValueError:
        return type_json
    return _type_name(type_object)


def type_json(spanner_type: str) -> str:
    """Return the JSON of a column's type, of those that are the same to sinks.

    Args:
        spanner_type: as the information schema spells it, in either dialect.
    """
    element = element_type(spanner_type)
    if element is not None:
        return f'{{"code":"ARRAY","array_element_type":{type_json(element)}}}'
    text = "UUID" if spanner_type.upper() == "UUID" else "STRING"
    return f'{{"code":"{_CODES.get(spark_type(spanner_type), text)}"}}'


def _type_name(kind: Any) -> str:
    if not isinstance(kind, dict):
        return str(kind)
    if kind.get("code") == "ARRAY":
        return f"ARRAY<{_type_name(kind.get('array_element_type'))}>"
    return str(kind.get("type_annotation") or kind.get("code"))


def value_expression(text: str, spanner_type: str, *, cast: str = "CAST") -> str:
    """Return an SQL expression that converts a text to the column's type.

    Args:
        text: an SQL expression of the value's text.
        spanner_type: as the information schema spells it, in either dialect.
        cast: CAST fails at a text that is not a value of the type; TRY_CAST makes it NULL.
    """
    element = element_type(spanner_type)
    if element is not None:
        items = _items(text) if cast == "TRY_CAST" else _items(text, _FAIL)
        item = value_expression("item", element, cast=cast)
        return items if item == "item" else f"transform({items}, item -> {item})"
    kind = spark_type(spanner_type)
    if kind == "BINARY":
        # unbase64() skips characters that are not Base64.
        return f"{'to_binary' if cast == 'CAST' else 'try_to_binary'}({text}, 'base64')"
    if kind in _WITH_YEAR:
        text = _four_digit_year(text)
    return text if kind == "STRING" else f"{cast}({text} AS {_CAST_TYPES.get(kind, kind)})"


def values_expression(text: str) -> str:
    """Return an SQL expression of the values in a JSON object, of the type VALUES.

    A text that is not a JSON object fails; NULL stays NULL.
    """
    return f"from_json({text}, '{VALUES}'{_FAIL})"


def _items(text: str, mode: str = "") -> str:
    # Spark makes a blank text NULL in every mode.
    return f"from_json(CASE WHEN trim({text}) = '' THEN '!' ELSE {text} END, 'array<string>'{mode})"


def _four_digit_year(text: str) -> str:
    """Return an SQL expression of a time or date with a year of four digits, as in timestamp.py."""
    return f"(repeat('0', 5 - instr({text}, '-')) || {text})"


def nanoseconds_expression(text: str) -> str:
    """Return an SQL expression of the nanoseconds beyond whole microseconds, 0 to 999.

    Args:
        text: an SQL expression of a TIMESTAMP's text, in RFC 3339.
    """
    digits = f"substr(regexp_extract({text}, '[.]([0-9]+)', 1), 7, 3)"
    return f"CAST(rpad({digits}, 3, '0') AS INT)"


def bad_value_condition(text: str, spanner_type: str) -> str:
    """Return an SQL expression that is true where a text is not a value of the column's type.

    Args:
        text: an SQL expression of the value's text.
        spanner_type: as the information schema spells it, in either dialect.
    """
    element = element_type(spanner_type)
    if element is not None:
        items = _items(text)
        inner = bad_value_condition("item", element)
        is_array = f"{items} IS NOT NULL AND NOT exists({items}, item -> {inner})"
        return f"({text} IS NOT NULL AND NOT ({is_array}))"
    return (
        f"({text} IS NOT NULL AND {value_expression(text, spanner_type, cast='TRY_CAST')} IS NULL)"
    )
