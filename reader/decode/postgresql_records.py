"""Decoding of PostgreSQL's rows one by one: each is a JSON object with a change record.

As in reader.decode.googlesql_records, a value of another kind than documented is an error. Spanner
may leave out a field that has no value; but if the object also has a field with an unknown name,
that could be the same field renamed, and it is an error, too.
"""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import orjson

from slackwater.reader.decode.googlesql_records import DATA_CHANGE_FIELDS, int64, token_of
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

_Object = Mapping[str, Any]
# Fields that Spanner may leave out.
OPTIONAL_DATA_FIELDS: Final = frozenset({"transaction_tag", "is_system_transaction"})
_OPTIONAL_MOD_FIELDS: Final = frozenset({"new_values", "old_values"})
# orjson writes integers of at most 64 bits.
_DIGITS_MAX: Final = 18


class PostgreSqlRows:
    """A decoder of rows: JSON objects with one of the three records."""

    def __init__(self) -> None:
        # The records of a transaction share a commit timestamp.
        self._timestamp_ns = lru_cache(maxsize=1)(parse_rfc3339)
        self._column_types: dict[str, tuple[ColumnType, ...]] = {}

    def decode(self, value: Any) -> list[ChangeRecord]:
        """Return the records of a row.

        Raises:
            DecodeError: the row is not as documented.
        """
        try:
            # Numbers stay as Spanner wrote them: a float may change when it is read and written.
            row = _object(
                json.loads(value.string_value, parse_float=orjson.Fragment, parse_int=_integer)
            )
            records: list[ChangeRecord] = []
            if (data := row.get("data_change_record")) is not None:
                records.append(self._data_change(_object(data)))
            if (heartbeat := row.get("heartbeat_record")) is not None:
                records.append(HeartbeatRecord(parse_rfc3339(_text(heartbeat, "timestamp"))))
            if (children := row.get("child_partitions_record")) is not None:
                records.append(_child_partitions(_object(children)))
        except KeyError as error:
            raise DecodeError(
                f"Spanner's JSON change records have no field {error}; it may have been renamed.",
                "Nothing was skipped. Look for a version of Slackwater that knows the new form",
            ) from error
        except (TypeError, ValueError, RecursionError) as error:
            raise DecodeError(f"a JSON change record can't be read: {error}.") from error
        if not records:
            raise DecodeError("a row holds none of the three change records.")
        return records

    def _data_change(self, data: _Object) -> DataChangeRecord:
        _require_not_renamed(data, OPTIONAL_DATA_FIELDS, len(DATA_CHANGE_FIELDS))
        tag = data.get("transaction_tag")
        is_system = data.get("is_system_transaction")
        return DataChangeRecord(
            self._timestamp_ns(_text(data, "commit_timestamp")),
            _text(data, "server_transaction_id"),
            _text(data, "record_sequence"),
            _flag(data, "is_last_record_in_transaction_in_partition"),
            _text(data, "table_name"),
            self._columns(_list(data, "column_types")),
            tuple([_mod(_object(mod)) for mod in _list(data, "mods")]),
            _text(data, "mod_type"),
            _text(data, "value_capture_type"),
            _number(data, "number_of_records_in_transaction"),
            _number(data, "number_of_partitions_in_transaction"),
            "" if tag is None else _text(data, "transaction_tag"),
            is_system is not None and _flag(data, "is_system_transaction"),
        )

    def _columns(self, columns: Sequence[Any]) -> tuple[ColumnType, ...]:
        key = orjson.dumps(columns).decode()
        column_types = self._column_types.get(key)
        if column_types is None:
            column_types = self._column_types[key] = json_column_types(columns)
        return column_types


def json_column_types(columns: Any) -> tuple[ColumnType, ...]:
    """Return the column types of a record.

    Raises:
        KeyError, TypeError, ValueError: they are not as documented.
    """
    if type(columns) is not list:
        raise ValueError("column_types is not a list")
    return tuple(
        ColumnType(
            _text(_object(column), "name"),
            _json(column["type"]) or _missing("type"),
            _flag(column, "is_primary_key"),
            _number(column, "ordinal_position"),
        )
        for column in columns
    )


def _mod(mod: _Object) -> Mod:
    _require_not_renamed(mod, _OPTIONAL_MOD_FIELDS, len(Mod._fields))
    return Mod(_json(mod["keys"]), _json(mod.get("new_values")), _json(mod.get("old_values")))


def _require_not_renamed(fields: _Object, optional: frozenset[str], size: int) -> None:
    """Refuse an object that lacks an optional field and has an unknown one."""
    missing = sum(name not in fields for name in optional)
    if missing and len(fields) > size - missing:
        names = ", ".join(sorted(name for name in optional if name not in fields))
        raise ValueError(f"{names} is missing, and may be one of the fields {sorted(fields)}")


def _child_partitions(record: _Object) -> ChildPartitionsRecord:
    sequence = record["record_sequence"]
    return ChildPartitionsRecord(
        parse_rfc3339(_text(record, "start_timestamp")),
        str(sequence) if type(sequence) is int else _text(record, "record_sequence"),
        tuple(_child(_object(child)) for child in _list(record, "child_partitions")),
    )


def _child(child: _Object) -> ChildPartition:
    parents = child["parent_partition_tokens"]
    names = () if parents is None else _list(child, "parent_partition_tokens")
    if any(not (name is None or type(name) is str) for name in names):
        raise ValueError("a parent partition's token is not a text")
    return ChildPartition(token_of(_text(child, "token")), frozenset(filter(None, names)))


def _text(fields: Any, name: str) -> str:
    text = fields[name]
    if type(text) is not str:
        raise ValueError(f"{name} is not a text")
    if not text.isascii():
        # An escape for half of a surrogate pair is valid JSON, but not a text.
        text.encode()
    return text


def _flag(fields: _Object, name: str) -> bool:
    flag = fields[name]
    if type(flag) is not bool:
        raise ValueError(f"{name} is not a boolean")
    return flag


def _number(fields: _Object, name: str) -> int:
    number = fields[name]
    if type(number) is not int and type(number) is not str:
        raise ValueError(f"{name} is not a number")
    return int64(number)


def _list(fields: _Object, name: str) -> Sequence[Any]:
    items = fields[name]
    if type(items) is not list:
        raise ValueError(f"{name} is not a list")
    return items


def _object(value: Any) -> _Object:
    if type(value) is not dict:
        raise ValueError("a JSON object is expected where there is another value")
    return value


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(_object(value)).decode()


def _missing(name: str) -> str:
    raise ValueError(f"{name} is null")


def _integer(text: str) -> int | orjson.Fragment:
    return int(text) if len(text) <= _DIGITS_MAX else orjson.Fragment(text)
