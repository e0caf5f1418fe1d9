"""JSON values of change records as Arrow arrays of their columns' types.

Sink and source share this: a mirror and a notebook show a value in the same way.
"""

from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final

import orjson
import pyarrow as pa

from slackwater.column_types import element_type, spark_type
from slackwater.timestamp import ns_to_us, parse_date, parse_rfc3339

# The errors of conversions, Arrow's among them.
_NOT_OF_TYPE: Final = (ValueError, TypeError, ArithmeticError)

_ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float32(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP": pa.timestamp("us", tz="UTC"),
    "DATE": pa.date32(),
    "DECIMAL(38,9)": pa.decimal128(38, 9),
    "BINARY": pa.binary(),
    "STRING": pa.string(),
}


class ValueTypeError(ValueError):
    """A value is not of its column's type.

    Attributes:
        value: as JSON has it.
        kind: the column's type.
    """

    def __init__(self, value: Any, kind: pa.DataType) -> None:
        super().__init__(f"{value!r} is not of type {kind}")
        self.value = value
        self.kind = kind


def arrow_type(spanner_type: str) -> pa.DataType:
    """Return the Arrow type of a column.

    Args:
        spanner_type: as the information schema spells it, in either dialect.
    """
    element = element_type(spanner_type)
    if element is not None:
        return pa.list_(arrow_type(element))
    return _ARROW_TYPES[spark_type(spanner_type)]


def arrow_array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return a column's values, of which None is NULL.

    Args:
        values: as JSON has them.
        kind: one of arrow_type().

    Raises:
        ValueTypeError: a value is not of the type.
    """
    convert = _converter(kind)
    try:
        return pa.array([convert(value) for value in values], kind)
    except _NOT_OF_TYPE as error:
        bad = next(value for value in values if not is_of_type(value, kind))
        raise ValueTypeError(bad, kind) from error


def is_of_type(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value, as JSON has it, is of a type of arrow_type()."""
    try:
        pa.array([_converter(kind)(value)], kind)
    except _NOT_OF_TYPE:
        return False
    return True


def _converter(kind: pa.DataType) -> Callable[[Any], Any]:
    """Return the conversion of a JSON value to Arrow's input; NULL stays None."""
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
    pa.date32().id: parse_date,
    pa.binary().id: _bytes,
}
