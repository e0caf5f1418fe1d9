"""The rows of a table as Arrow columns, made from a query's values by column.

The texts of thousands of keys and rows are made together, and all other columns are constant or
counted, so a row costs little more than reading its values from protobuf messages.
"""

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from slackwater.reader.decode.arrow import column_types_array, mods_array
from slackwater.reader.decode.json_strings import string_literals
from slackwater.reader.records import ColumnType
from slackwater.reader.schema import DATA_SCHEMA
from slackwater.timestamp import ns_to_us

# The fields that are the same in the records of all rows.
IN_COMMON: Final[dict[str, Any]] = {
    "server_transaction_id": "",
    "is_last_record_in_transaction_in_partition": True,
    "mod_type": "INSERT",
    "value_capture_type": "NEW_ROW",
    "number_of_records_in_transaction": 1,
    "number_of_partitions_in_transaction": 1,
    "transaction_tag": "",
    "is_system_transaction": False,
}
_string_value: Final = attrgetter("string_value")
_number_value: Final = attrgetter("number_value")
# Their JSON has no comma.
_SIMPLE: Final = {float, bool, type(None)}


def plain_value(value: Any) -> Any:
    """Return the value of a google.protobuf.Value as JSON has it."""
    kind = value.WhichOneof("kind")
    if kind == "list_value":
        return [plain_value(item) for item in value.list_value.values]
    return None if kind == "null_value" else getattr(value, kind)


def plain_column(values: Sequence[Any]) -> list[Any]:
    """Return the same for the values of one column."""
    # A value of another kind has an empty text, and 0 as its number.
    if all(plain := list(map(_string_value, values))):
        return plain
    if all(plain := list(map(_number_value, values))):
        return plain
    return list(map(plain_value, values))


def row_columns(
    values: Mapping[str, Sequence[Any]],
    key: Sequence[str],
    types: Sequence[ColumnType],
    *,
    table: str,
    at_ns: int,
    first: int,
) -> pa.RecordBatch:
    """Return rows of a table as the first 13 columns of the output, as snapshot() has them.

    Args:
        values: as JSON has them, by column, in the order of a row.
        key: the names of those of the primary key, in its order.
        types: the columns' types.
        table: the table's full name.
        at_ns: the read timestamp, nanoseconds.
        first: the number of the first row in its read.
    """
    count = len(next(iter(values.values())))
    mods = [
        _texts(key, values, count),
        _texts([name for name in values if name not in key], values, count),
        _repeated("{}", pa.string(), count),
    ]
    made = {
        "commit_timestamp": _repeated(ns_to_us(at_ns), pa.int64(), count),
        "record_sequence": _padded(range(first, first + count)),
        "table_name": _repeated(table, pa.string(), count),
        "column_types": column_types_array([types], pa.repeat(pa.scalar(0, pa.int32()), count)),
        "mods": mods_array(np.ones(count, np.int64), mods),
    }
    return pa.RecordBatch.from_arrays(
        [
            made[field.name].cast(field.type)
            if field.name in made
            else _repeated(IN_COMMON[field.name], field.type, count)
            for field in DATA_SCHEMA
        ],
        schema=DATA_SCHEMA,
    )


def _texts(names: Iterable[str], columns: Mapping[str, Sequence[Any]], count: int) -> pa.Array:
    """Return a JSON object of some columns for each row, as the change records write it.

    Joined by column: to dump each row takes twice the time.
    """
    parts: list[Any] = []
    before = "{"
    for name in sorted(names):
        parts += [f"{before}{orjson.dumps(name).decode()}:", *_literals(columns[name])]
        before = ","
    if not parts:
        return _repeated("{}", pa.string(), count)
    return pc.binary_join_element_wise(*parts, "}", "")


def _literals(values: Sequence[Any]) -> tuple[pa.Array | str, ...]:
    """Return what makes the JSON of each value of a column, once it is joined."""
    if (kinds := set(map(type, values))) == {str}:
        return string_literals(pa.array(values, pa.string()))
    if kinds <= _SIMPLE:
        return (pa.array(orjson.dumps(values)[1:-1].split(b","), pa.string()),)
    return (pa.array(list(map(orjson.dumps, values)), pa.string()),)


def _padded(numbers: Iterable[int]) -> pa.Array:
    texts = pc.cast(pa.array(numbers, pa.int64()), pa.string())
    return pc.utf8_lpad(texts, 8, "0")


def _repeated(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)
