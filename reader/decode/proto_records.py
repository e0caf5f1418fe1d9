"""Decoding of the rows of partition_mode MUTABLE_KEY_RANGE one by one, in both dialects.

Each row is a serialized google.spanner.v1.ChangeStreamRecord in base64: a PROTO in GoogleSQL, BYTES
in PostgreSQL. A data change record becomes what the other mode gives for the same change. There
Spanner writes a mod's values as a JSON object; here they are protobuf values, each with the index
of its column in column_metadata, and the JSON is written here. Its members are in the order of
their names, without spaces, as Spanner writes the JSON type. A mod without old or new values has
{}, as in the other mode.

protobuf gives "", 0 and False for a field that was not sent. Where such a value can't be meant it
is an error, and so is a kind of record that is not listed in the definition: it may matter.
"""

import math
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson
from google.cloud.spanner_v1.types import ChangeStreamRecord, TypeCode
from google.protobuf import message
from google.protobuf.json_format import MessageToDict

from slackwater.reader.errors import DecodeError
from slackwater.reader.records import (
    ChangeRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    Mod,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from slackwater.timestamp import seconds_to_ns

PROTO_NAME: Final = "google.spanner.v1.ChangeStreamRecord"
_Record: Final[Any] = ChangeStreamRecord.pb(ChangeStreamRecord()).__class__
_DataChange: Final[Any] = _Record().data_change_record.__class__
_DATA: Final = _DataChange.DESCRIPTOR
# The names of the numbers, without 0, which stands for a type that was not sent.
MOD_TYPES: Final[Mapping[int, str]] = {
    v.number: v.name for v in _DATA.enum_types_by_name["ModType"].values if v.number
}
VALUE_CAPTURE_TYPES: Final[Mapping[int, str]] = {
    v.number: v.name for v in _DATA.enum_types_by_name["ValueCaptureType"].values if v.number
}


def is_change_stream_record(kind: Any) -> bool:
    """Return True for the type of a column, from a result set's metadata, that holds these rows."""
    if kind.code == TypeCode.PROTO:
        return bool(kind.proto_type_fqn == PROTO_NAME)
    return bool(kind.code == TypeCode.BYTES)


class ProtoRows:
    """A decoder of rows: serialized ChangeStreamRecords in base64."""

    def __init__(self) -> None:
        self._column_types: dict[tuple[bytes, ...], tuple[ColumnType, ...]] = {}

    def decode(self, value: Any) -> list[ChangeRecord]:
        """Return the only record of a row.

        Raises:
            DecodeError: the row is not as documented.
        """
        if value.WhichOneof("kind") != "string_value":
            raise DecodeError(f"a row is {value.WhichOneof('kind') or 'nothing'}, and not a text.")
        try:
            record = _Record.FromString(b64decode(value.string_value, validate=True))
            return [self._record(record)]
        except (ValueError, message.DecodeError) as error:
            raise DecodeError(f"a ChangeStreamRecord can't be read: {error}.") from error

    def _record(self, record: Any) -> ChangeRecord:
        match record.WhichOneof("record"):
            case "data_change_record":
                return self._data_change(record.data_change_record)
            case "heartbeat_record":
                return HeartbeatRecord(_time_ns(record.heartbeat_record, "timestamp"))
            case "partition_start_record":
                return _partition_start(record.partition_start_record)
            case "partition_end_record":
                end = record.partition_end_record
                return PartitionEndRecord(
                    _time_ns(end, "end_timestamp"),
                    _text(end, "record_sequence"),
                    _text(end, "partition_token"),
                )
            case "partition_event_record":
                return _partition_event(record.partition_event_record)
        raise ValueError("it holds none of the five kinds of record")

    def _data_change(self, data: Any) -> DataChangeRecord:
        columns = self._columns(data.column_metadata)
        return DataChangeRecord(
            _time_ns(data, "commit_timestamp"),
            _text(data, "server_transaction_id"),
            _text(data, "record_sequence"),
            data.is_last_record_in_transaction_in_partition,
            _text(data, "table"),
            columns,
            tuple([_mod(mod, columns) for mod in data.mods]),
            _enum_name(data, "mod_type", MOD_TYPES),
            _enum_name(data, "value_capture_type", VALUE_CAPTURE_TYPES),
            _count(data, "number_of_records_in_transaction"),
            _count(data, "number_of_partitions_in_transaction"),
            data.transaction_tag,
            data.is_system_transaction,
        )

    def _columns(self, columns: Sequence[Any]) -> tuple[ColumnType, ...]:
        """Return column types; each distinct list is decoded once, since they repeat."""
        key = tuple([column.SerializeToString() for column in columns])
        column_types = self._column_types.get(key)
        if column_types is None:
            column_types = self._column_types[key] = tuple(map(_column_type, columns))
        return column_types


def column_types_of_record(serialized: bytes) -> tuple[ColumnType, ...]:
    """Return the column types in the bytes of a data change record's field column_metadata.

    Raises:
        ValueError, google.protobuf.message.DecodeError: they are not as documented.
    """
    return tuple(map(_column_type, _DataChange.FromString(serialized).column_metadata))


def _column_type(column: Any) -> ColumnType:
    fields = MessageToDict(column.type_, preserving_proto_field_name=True)
    if "code" not in fields:
        raise ValueError(f"column {column.name} has no type")
    return ColumnType(
        _text(column, "name"),
        orjson.dumps(fields, option=orjson.OPT_SORT_KEYS).decode(),
        column.is_primary_key,
        _count(column, "ordinal_position"),
    )


def _mod(mod: Any, columns: Sequence[ColumnType]) -> Mod:
    return Mod(
        _json_object(mod.keys, columns),
        _json_object(mod.new_values, columns),
        _json_object(mod.old_values, columns),
    )


def _json_object(values: Sequence[Any], columns: Sequence[ColumnType]) -> str:
    members: dict[str, Any] = {}
    for value in values:
        index = value.column_metadata_index
        if not 0 <= index < len(columns):
            raise ValueError(f"a mod names column {index} of {len(columns)}")
        name = columns[index].name
        if name in members:
            raise ValueError(f"a mod has two values of column {name}")
        members[name] = json_value(value.value)
    return orjson.dumps(members, option=orjson.OPT_SORT_KEYS).decode()


def json_value(value: Any) -> Any:
    """Return a google.protobuf.Value as orjson writes it.

    Raises:
        ValueError: it has no kind, or is a number that JSON has not.
    """
    match value.WhichOneof("kind"):
        case "string_value":
            return value.string_value
        case "null_value":
            return None
        case "number_value":
            # Spanner writes these as texts; orjson would write null.
            if not math.isfinite(value.number_value):
                raise ValueError(f"{value.number_value} is not a number of JSON")
            return value.number_value
        case "bool_value":
            return value.bool_value
        case "list_value":
            return [json_value(item) for item in value.list_value.values]
        case "struct_value":
            return {name: json_value(item) for name, item in value.struct_value.fields.items()}
    raise ValueError("a mod has a column without a value")


def _partition_start(start: Any) -> PartitionStartRecord:
    tokens = tuple(start.partition_tokens)
    if not tokens or not all(tokens):
        raise ValueError("a partition start record names no partition")
    return PartitionStartRecord(
        _time_ns(start, "start_timestamp"), _text(start, "record_sequence"), tokens
    )


def _partition_event(event: Any) -> PartitionEventRecord:
    return PartitionEventRecord(
        _time_ns(event, "commit_timestamp"),
        _text(event, "record_sequence"),
        _text(event, "partition_token"),
        tuple([_text(move, "source_partition_token") for move in event.move_in_events]),
        tuple([_text(move, "destination_partition_token") for move in event.move_out_events]),
    )


def _time_ns(record: Any, name: str) -> int:
    if not record.HasField(name):
        raise ValueError(f"{name} is missing")
    time = getattr(record, name)
    return seconds_to_ns(time.seconds) + int(time.nanos)


def _text(record: Any, name: str) -> str:
    text: str = getattr(record, name)
    if not text:
        raise ValueError(f"{name} is missing")
    return text


def _count(record: Any, name: str) -> int:
    count: int = getattr(record, name)
    if count < 1:
        raise ValueError(f"{name} is {count}")
    return count


def _enum_name(record: Any, name: str, names: Mapping[int, str]) -> str:
    number = getattr(record, name)
    if number not in names:
        raise ValueError(f"{name} is {number}, which has no name")
    return names[number]
