"""Spanner's types in Avro: the schema of a column's values, and their conversion from a mod's JSON.

The choice is the same as in sql/types: a value that Avro has no type for becomes a string that
loses nothing.
"""

import base64
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

from slackwater.spark_sink.envelopes.avro_fields import TIMESTAMP_MICROS, Schema, nullable
from slackwater.spark_sink.envelopes.envelope import dumps
from slackwater.spark_sink.envelopes.values import Convert, parsed_type
from slackwater.timestamp import ns_to_datetime, parse_date, parse_rfc3339

# Also the underscore of a text like an escaped character, so that no two names become one.
_ESCAPED: Final = re.compile(r"[^A-Za-z0-9_]|^[0-9]|_(?=u[0-9a-f]{4})")


def avro_name(name: str) -> str:
    """Return a valid Avro name: other characters become _uXXXX_, by their code points."""
    return _ESCAPED.sub(lambda match: f"_u{ord(match[0]):04x}_", name)


def avro_schema(type_json: str) -> Schema:
    """Return the schema of a column's values other than NULL.

    Args:
        type_json: the JSON of a column's type, as in data change records.
    """
    return _schema_and_converter(type_json)[0]


def avro_converter(type_json: str) -> Convert:
    """Return the conversion from a value in a mod's JSON to the one that fastavro writes.

    The conversion raises ValueError if a value is not of its type.
    """
    return _schema_and_converter(type_json)[1]


@lru_cache(maxsize=10_000)
def connect_avro_converter(type_json: str) -> Convert:
    """Return the same conversion for Kafka Connect's types, which have no times and decimals."""
    return _checked(_of_type(parsed_type(type_json), _CONNECT_BY_CODE)[1], type_json)


@lru_cache(maxsize=10_000)
def _schema_and_converter(type_json: str) -> tuple[Schema, Convert]:
    schema, convert = _of_type(parsed_type(type_json), _BY_CODE)
    return schema, _checked(convert, type_json)


def _of_type(kind: Any, by_code: "Mapping[str, _Conversion]") -> tuple[Schema, Convert]:
    if not isinstance(kind, dict) or kind.get("type_annotation"):
        # A type with a PostgreSQL annotation differs from the GoogleSQL type whose code it has.
        return "string", _text
    if kind.get("code") == "ARRAY":
        schema, item = _of_type(kind.get("array_element_type"), by_code)
        return (
            {"type": "array", "items": nullable(schema)},
            lambda values: [None if v is None else item(v) for v in values],
        )
    return by_code.get(str(kind.get("code")), ("string", _text))


def _checked(convert: Convert, type_json: str) -> Convert:
    def checked(value: Any) -> Any:
        if value is None:
            return None
        try:
            return convert(value)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise ValueError(f"{value!r} is not a value of type {type_json}") from error

    return checked


def _text(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _timestamp(value: str) -> datetime:
    """Parse a timestamp; digits below microseconds are dropped."""
    return ns_to_datetime(parse_rfc3339(value))


_Conversion = tuple[Schema, Callable[[Any], Any]]
_BY_CODE: Final[Mapping[str, _Conversion]] = {
    "INT64": ("long", int),
    "FLOAT64": ("double", float),
    "FLOAT32": ("float", float),
    "BOOL": ("boolean", _bool),
    "BYTES": ("bytes", lambda value: base64.b64decode(value, validate=True)),
    "TIMESTAMP": (TIMESTAMP_MICROS, _timestamp),
    "DATE": ({"type": "int", "logicalType": "date"}, parse_date),
    "NUMERIC": (
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 9},
        Decimal,
    ),
    "UUID": ({"type": "string", "logicalType": "uuid"}, _text),
}
_CONNECT_BY_CODE: Final[Mapping[str, _Conversion]] = {
    code: _BY_CODE[code] for code in ("INT64", "FLOAT64", "FLOAT32", "BOOL", "BYTES")
}
