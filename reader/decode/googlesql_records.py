"""Decoding of GoogleSQL's rows one by one: ARRAY<STRUCT<...>> values.

Their fields are found by the names in the result set's metadata, so that a field that Spanner adds
to the records does not shift the others. A value of another kind than documented is an error, never
an empty text, False or 0 in its place.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from google.protobuf.struct_pb2 import Value

from slackwater.reader.errors import DecodeError
from slackwater.reader.records import (
    ChangeRecord,
    ChildPartition,
    ChildPartitionsRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
)
from slackwater.timestamp import parse_rfc3339

INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
DATA_CHANGE_FIELDS: Final = (
    "commit_timestamp",
    "server_transaction_id",
    "record_sequence",
    "is_last_record_in_transaction_in_partition",
    "table_name",
    "column_types",
    "mods",
    "mod_type",
    "value_capture_type",
    "number_of_records_in_transaction",
    "number_of_partitions_in_transaction",
    "transaction_tag",
    "is_system_transaction",
)
COLUMN_TYPE_FIELDS: Final = ("name", "type", "is_primary_key", "ordinal_position")
MOD_FIELDS: Final = ("keys", "new_values", "old_values")


class GoogleSqlRows:
    """A decoder of rows: ARRAY<STRUCT<data_change_record, heartbeat_record,
    child_partitions_record>>.

    Args:
        element_type: the type of the array's items, from the result set's metadata.

    Raises:
        DecodeError: a field is missing there.
    """

    def __init__(self, element_type: Any) -> None:
        kinds = ("data_change_record", "heartbeat_record", "child_partitions_record")
        try:
            data, heartbeat, children = (items_of(element_type, kind) for kind in kinds)
            self._kinds = _Struct(element_type, kinds)
            self._data = _Struct(data, DATA_CHANGE_FIELDS)
            self._column = _Struct(items_of(data, "column_types"), COLUMN_TYPE_FIELDS)
            self._mod = _Struct(items_of(data, "mods"), MOD_FIELDS)
            self._heartbeat = _Struct(heartbeat, ("timestamp",))
            self._children = _Struct(
                children, ("start_timestamp", "record_sequence", "child_partitions")
            )
            self._child = _Struct(
                items_of(children, "child_partitions"), ("token", "parent_partition_tokens")
            )
        except KeyError as error:
            raise DecodeError(
                f"Spanner's change records have no field {error}; it may have been renamed.",
                "Nothing was skipped. Look for a version of Slackwater that knows the new form",
            ) from error
        self._column_types: dict[bytes, tuple[ColumnType, ...]] = {}
        # The records of a transaction share a commit timestamp.
        self._timestamp_ns = lru_cache(maxsize=1)(parse_rfc3339)

    def decode(self, value: Any) -> list[ChangeRecord]:
        """Return the records of a row.

        Raises:
            DecodeError: the row is not as documented.
        """
        records: list[ChangeRecord] = []
        try:
            for struct in _items(value, "a row"):
                data, heartbeats, children = self._kinds.cells(struct)
                records += [self._data_change(item) for item in _items_or_null(data)]
                records += [self._heartbeat_at(item) for item in _items_or_null(heartbeats)]
                records += [self._child_partitions(item) for item in _items_or_null(children)]
        except ValueError as error:
            raise DecodeError(f"a change record can't be read: {error}.") from error
        if not records:
            raise DecodeError("a row holds none of the three change records.")
        return records

    def _data_change(self, value: Any) -> DataChangeRecord:
        f = self._data.cells(value)
        time, transaction, sequence, table, mod_type, capture, records, partitions = _texts(
            (f[0], f[1], f[2], f[4], f[7], f[8], f[9], f[10])
        )
        return DataChangeRecord(
            self._timestamp_ns(time),
            transaction,
            sequence,
            f[3].bool_value or _flag(f[3]),
            table,
            self._columns(f[5]),
            tuple([self._mod_of(mod) for mod in _items(f[6], "mods")]),
            mod_type,
            capture,
            int64(records),
            int64(partitions),
            f[11].string_value or _text_or_null(f[11]) or "",
            f[12].bool_value or (not _is_null(f[12]) and _flag(f[12])),
        )

    def _columns(self, value: Any) -> tuple[ColumnType, ...]:
        """Return column types; each distinct value is decoded once, since they repeat."""
        key = value.SerializeToString()
        column_types = self._column_types.get(key)
        if column_types is None:
            column_types = self._column_types[key] = _column_types(value, self._column.cells)
        return column_types

    def _mod_of(self, value: Any) -> Mod:
        keys, new_values, old_values = self._mod.cells(value)
        # An empty string is not valid JSON, so only NULL can look empty.
        return Mod(
            keys.string_value or _text_or_null(keys) or None,
            new_values.string_value or _text_or_null(new_values) or None,
            old_values.string_value or _text_or_null(old_values) or None,
        )

    def _heartbeat_at(self, value: Any) -> HeartbeatRecord:
        (timestamp,) = self._heartbeat.cells(value)
        return HeartbeatRecord(parse_rfc3339(_text(timestamp)))

    def _child_partitions(self, value: Any) -> ChildPartitionsRecord:
        start, sequence, children = self._children.cells(value)
        return ChildPartitionsRecord(
            parse_rfc3339(_text(start)),
            _text(sequence),
            tuple(map(self._child_partition, _items(children, "child_partitions"))),
        )

    def _child_partition(self, value: Any) -> ChildPartition:
        token, parents = self._child.cells(value)
        # Spanner's documentation shows [NULL] for the parents of the first partitions.
        tokens = (_text_or_null(parent) for parent in _items_or_null(parents))
        return ChildPartition(token_of(_text(token)), frozenset(filter(None, tokens)))


class _Struct:
    """The places of some fields in the values of a struct's type.

    Raises:
        KeyError: the type has no field of one of these names.
    """

    def __init__(self, kind: Any, names: Sequence[str]) -> None:
        self._order = order_of(kind, names)
        self._size = len(kind.struct_type.fields)

    def cells(self, value: Any) -> list[Any]:
        """Return the fields of a value, in the order of the names.

        Raises:
            ValueError: the value is not a struct of this type.
        """
        cells = value.list_value.values
        if len(cells) != self._size:
            raise ValueError(f"a struct of {self._size} fields has {len(cells)} values")
        return [cells[position] for position in self._order]


def column_types_of(serialized: bytes) -> tuple[ColumnType, ...]:
    """Return the column types in a serialized google.protobuf.Value of GoogleSQL.

    Its structs have COLUMN_TYPE_FIELDS, in this order.

    Raises:
        ValueError: the value is not as documented.
    """

    def cells(struct: Any) -> Sequence[Any]:
        values: Sequence[Any] = struct.list_value.values
        if len(values) != len(COLUMN_TYPE_FIELDS):
            raise ValueError(f"a column type has {len(values)} values")
        return values

    return _column_types(Value.FromString(serialized), cells)


def _column_types(value: Any, cells: Callable[[Any], Sequence[Any]]) -> tuple[ColumnType, ...]:
    columns = []
    for struct in _items(value, "column_types"):
        name, kind, is_key, ordinal = cells(struct)
        columns.append(ColumnType(_text(name), _text(kind), _flag(is_key), _ordinal(ordinal)))
    return tuple(columns)


def order_of(struct: Any, names: Sequence[str]) -> tuple[int, ...]:
    """Return the positions of fields in a struct's type.

    Raises:
        KeyError: it has no field of that name.
    """
    positions = {field.name: i for i, field in enumerate(struct.struct_type.fields)}
    return tuple(positions[name] for name in names)


def items_of(struct: Any, name: str) -> Any:
    """Return the type of the items of a field that is an array.

    Raises:
        KeyError: the struct has no field of that name.
    """
    (position,) = order_of(struct, [name])
    return struct.struct_type.fields[position].type_.array_element_type


def int64(value: str | int) -> int:
    """Return a number.

    Raises:
        ValueError: it does not fit into 64 bits, or is not a number.
    """
    number = int(value)
    if not INT64_MIN <= number <= INT64_MAX:
        raise ValueError(f"{number} is not a number of 64 bits")
    return number


def token_of(token: str) -> str:
    """Return a child partition's token.

    Raises:
        ValueError: it is empty: a query with it would ask for other partitions.
    """
    if not token:
        raise ValueError("a child partition has no token")
    return token


def _text(cell: Any) -> str:
    text: str = cell.string_value
    # The value of another kind looks like an empty text.
    if not text and cell.WhichOneof("kind") != "string_value":
        raise _another_kind(cell, "a text")
    return text


def _texts(cells: Sequence[Any]) -> Sequence[str]:
    texts = [cell.string_value for cell in cells]
    return texts if all(texts) else [_text(cell) for cell in cells]


def _text_or_null(cell: Any) -> str | None:
    return None if _is_null(cell) else _text(cell)


def _flag(cell: Any) -> bool:
    flag: bool = cell.bool_value
    if not flag and cell.WhichOneof("kind") != "bool_value":
        raise _another_kind(cell, "a boolean")
    return flag


def _items(cell: Any, what: str) -> Sequence[Any]:
    items: Sequence[Any] = cell.list_value.values
    if not items and cell.WhichOneof("kind") != "list_value":
        raise _another_kind(cell, f"the list of {what}")
    return items


def _items_or_null(cell: Any) -> Sequence[Any]:
    items: Sequence[Any] = cell.list_value.values
    if not items and cell.WhichOneof("kind") not in ("list_value", "null_value"):
        raise _another_kind(cell, "an array")
    return items


def _is_null(cell: Any) -> bool:
    return bool(cell.WhichOneof("kind") == "null_value")


def _ordinal(cell: Any) -> int:
    if cell.WhichOneof("kind") == "number_value" and cell.number_value.is_integer():
        return int(cell.number_value)
    return int64(_text(cell))


def _another_kind(cell: Any, expected: str) -> ValueError:
    return ValueError(f"{cell.WhichOneof('kind') or 'nothing'} stands in the place of {expected}")
