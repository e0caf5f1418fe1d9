"""Decoding one by one: from Spanner's PartialResultSets to change records, in both dialects.

GoogleSQL returns ARRAY<STRUCT<...>> values. Their fields are found by the names in the result set's
metadata, so that a field that Spanner adds to the records does not shift the others. PostgreSQL
returns a JSON text for each record. Values of columns stay JSON texts: no type is converted here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import orjson
from google.cloud.spanner_v1.types import TypeCode
from google.protobuf.struct_pb2 import Value

from slackwater.reader.decode.result_rows import ResultRows
from slackwater.reader.errors import DecodeError, UnsupportedStreamError
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


class ChangeRecordDecoder:
    """A decoder of the messages of one query, in the order in which they came.

    A value may come in pieces, in several messages ("chunked"); its pieces are stored until it is
    complete. When a query is opened again, Spanner sends the value again from its beginning, and
    reset() drops the pieces.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget what came so far, before the first message of a query that is opened again."""
        self._row: Callable[[Any], list[ChangeRecord]] | None = None
        self._rows = ResultRows(1)

    def set_metadata(self, metadata: Any) -> None:
        """Use the metadata of a first message that is decoded elsewhere."""
        self._row = _row_decoder(metadata)

    def feed(self, message: bytes) -> list[ChangeRecord]:
        """Return the records that a serialized PartialResultSet completes.

        Raises:
            DecodeError: the message is not as Spanner documents it.
            UnsupportedStreamError: the stream's records have a form that can't be read.
        """
        rows = self._rows.feed(message)
        if self._row is None:
            self._row = _row_decoder(self._rows.metadata)
        row = self._row
        return [record for (value,) in rows for record in row(value)]

    @property
    def has_partial_value(self) -> bool:
        """True if the next message continues a value that this one began."""
        return self._rows.has_partial_value

    def finish(self) -> None:
        """Check, at the end of the query, that no value is incomplete.

        Raises:
            DecodeError: the query ended in the middle of a value.
        """
        if self._rows.has_partial_value:
            raise DecodeError("a query ended in the middle of a value.")


def _row_decoder(metadata: Any) -> Callable[[Any], list[ChangeRecord]]:
    fields = metadata.row_type.fields
    code = fields[0].type_.code if len(fields) == 1 else None
    if code == TypeCode.JSON:
        return _JsonRows().decode
    if code == TypeCode.ARRAY and fields[0].type_.array_element_type.code == TypeCode.STRUCT:
        return _StructRows(fields[0].type_.array_element_type).decode
    raise UnsupportedStreamError(
        f"the change stream's records have type code {code}.",
        "Streams with partition_mode MUTABLE_KEY_RANGE can't be read yet;"
        " create one with partition_mode IMMUTABLE_KEY_RANGE",
    )


class _StructRows:
    """A decoder of GoogleSQL rows.

    They are ARRAY<STRUCT<data_change_record, heartbeat_record, child_partitions_record>>.
    """

    def __init__(self, element_type: Any) -> None:
        kinds = ("data_change_record", "heartbeat_record", "child_partitions_record")
        children_fields = ("start_timestamp", "record_sequence", "child_partitions")
        try:
            self._data, self._heartbeat, self._children = order_of(element_type, kinds)
            data, heartbeat, children = (items_of(element_type, kind) for kind in kinds)
            self._order = order_of(data, DATA_CHANGE_FIELDS)
            self._column_order = order_of(items_of(data, "column_types"), COLUMN_TYPE_FIELDS)
            self._mod_order = order_of(items_of(data, "mods"), MOD_FIELDS)
            (self._heartbeat_timestamp,) = order_of(heartbeat, ("timestamp",))
            self._children_order = order_of(children, children_fields)
            self._token, self._parents = order_of(
                items_of(children, "child_partitions"), ("token", "parent_partition_tokens")
            )
        except KeyError as error:
            raise UnsupportedStreamError(f"change records have no field {error}.") from error
        self._column_types: dict[bytes, tuple[ColumnType, ...]] = {}
        self._timestamp = _LastTimestamp()

    def decode(self, value: Any) -> list[ChangeRecord]:
        records: list[ChangeRecord] = []
        try:
            for struct in value.list_value.values:
                kinds = struct.list_value.values
                records.extend(map(self._data_change, kinds[self._data].list_value.values))
                records.extend(map(self._heartbeat_at, kinds[self._heartbeat].list_value.values))
                records.extend(map(self._child_partitions, kinds[self._children].list_value.values))
        except (IndexError, ValueError) as error:
            raise DecodeError(
                f"a change record can't be read: {type(error).__name__} {error}"
            ) from error
        if not records:
            raise DecodeError("a row holds none of the three change records.")
        return records

    def _data_change(self, value: Any) -> DataChangeRecord:
        cells = value.list_value.values
        f = [cells[position] for position in self._order]
        return DataChangeRecord(
            self._timestamp.ns(f[0].string_value),
            f[1].string_value,
            f[2].string_value,
            f[3].bool_value,
            f[4].string_value,
            self._columns(f[5]),
            tuple([self._mod(mod) for mod in f[6].list_value.values]),
            f[7].string_value,
            f[8].string_value,
            int(f[9].string_value),
            int(f[10].string_value),
            f[11].string_value,
            f[12].bool_value,
        )

    def _columns(self, value: Any) -> tuple[ColumnType, ...]:
        """Return column types; each distinct value is decoded once, since they repeat."""
        key = value.SerializeToString()
        column_types = self._column_types.get(key)
        if column_types is None:
            column_types = self._column_types[key] = _column_types(value, self._column_order)
        return column_types

    def _mod(self, value: Any) -> Mod:
        cells = value.list_value.values
        keys, new_values, old_values = self._mod_order
        return Mod(
            _json_text(cells[keys]), _json_text(cells[new_values]), _json_text(cells[old_values])
        )

    def _heartbeat_at(self, value: Any) -> HeartbeatRecord:
        cells = value.list_value.values
        return HeartbeatRecord(parse_rfc3339(cells[self._heartbeat_timestamp].string_value))

    def _child_partitions(self, value: Any) -> ChildPartitionsRecord:
        cells = value.list_value.values
        start, sequence, children = (cells[position] for position in self._children_order)
        return ChildPartitionsRecord(
            parse_rfc3339(start.string_value),
            sequence.string_value,
            tuple(map(self._child, children.list_value.values)),
        )

    def _child(self, value: Any) -> ChildPartition:
        cells = value.list_value.values
        token = cells[self._token].string_value
        if not token:
            raise ValueError("a child partition has no token")
        parents = cells[self._parents].list_value.values
        # Spanner's documentation shows [NULL] for the parents of the first partitions.
        return ChildPartition(token, frozenset(p.string_value for p in parents if p.string_value))


def column_types_of(serialized: bytes) -> tuple[ColumnType, ...]:
    """Return the column types in a serialized google.protobuf.Value of GoogleSQL.

    Its structs have COLUMN_TYPE_FIELDS, in this order.
    """
    return _column_types(Value.FromString(serialized), range(len(COLUMN_TYPE_FIELDS)))


def _column_types(value: Any, order: Sequence[int]) -> tuple[ColumnType, ...]:
    name, kind, is_key, ordinal = order
    rows = (column.list_value.values for column in value.list_value.values)
    return tuple(
        ColumnType(
            c[name].string_value, c[kind].string_value, c[is_key].bool_value, int(_int(c[ordinal]))
        )
        for c in rows
    )


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


def _int(value: Any) -> str:
    return value.string_value or str(int(value.number_value))


def _json_text(value: Any) -> str | None:
    # An empty string is not valid JSON, so only NULL can look empty.
    return value.string_value or None


class _JsonRows:
    """A decoder of PostgreSQL rows: each is a JSON object with one of the three records."""

    def __init__(self) -> None:
        self._timestamp = _LastTimestamp()
        self._column_types: dict[str, tuple[ColumnType, ...]] = {}

    def decode(self, value: Any) -> list[ChangeRecord]:
        try:
            # Numbers stay as Spanner wrote them: a float may change when it is read and written.
            row = json.loads(value.string_value, parse_float=orjson.Fragment, parse_int=_integer)
            if (data := row.get("data_change_record")) is not None:
                return [self._data_change(data)]
            if (heartbeat := row.get("heartbeat_record")) is not None:
                return [HeartbeatRecord(parse_rfc3339(heartbeat["timestamp"]))]
            return [_child_partitions_json(row["child_partitions_record"])]
        except (KeyError, TypeError, ValueError) as error:
            raise DecodeError(
                f"a JSON change record can't be read: {type(error).__name__} {error}"
            ) from error

    def _data_change(self, data: Mapping[str, Any]) -> DataChangeRecord:
        return DataChangeRecord(
            self._timestamp.ns(data["commit_timestamp"]),
            data["server_transaction_id"],
            data["record_sequence"],
            data["is_last_record_in_transaction_in_partition"],
            data["table_name"],
            self._columns(data["column_types"]),
            tuple(Mod(*(_dumps(mod.get(name)) for name in Mod._fields)) for mod in data["mods"]),
            data["mod_type"],
            data["value_capture_type"],
            int(data["number_of_records_in_transaction"]),
            int(data["number_of_partitions_in_transaction"]),
            data.get("transaction_tag") or "",
            bool(data.get("is_system_transaction")),
        )

    def _columns(self, columns: Sequence[Mapping[str, Any]]) -> tuple[ColumnType, ...]:
        key = _dumps(columns) or ""
        column_types = self._column_types.get(key)
        if column_types is None:
            column_types = self._column_types[key] = json_column_types(columns)
        return column_types


def json_column_types(columns: Sequence[Mapping[str, Any]]) -> tuple[ColumnType, ...]:
    """Return the column types of a PostgreSQL record."""
    return tuple(
        ColumnType(
            column["name"],
            _dumps(column["type"]) or "",
            column["is_primary_key"],
            int(column["ordinal_position"]),
        )
        for column in columns
    )


def _integer(text: str) -> int | orjson.Fragment:
    # orjson writes integers of at most 64 bits.
    return int(text) if len(text) < 19 else orjson.Fragment(text)


def _dumps(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _child_partitions_json(record: Mapping[str, Any]) -> ChildPartitionsRecord:
    sequence = record["record_sequence"]
    return ChildPartitionsRecord(
        parse_rfc3339(record["start_timestamp"]),
        sequence if isinstance(sequence, str) else str(int(sequence)),
        tuple(
            ChildPartition(
                child["token"],
                frozenset(parent for parent in child["parent_partition_tokens"] if parent),
            )
            for child in record["child_partitions"]
        ),
    )


class _LastTimestamp:
    """A cache of one commit timestamp, which the records of a transaction share."""

    __slots__ = ("_ns", "_text")

    def __init__(self) -> None:
        self._text = ""
        self._ns = 0

    def ns(self, text: str) -> int:
        if text != self._text:
            self._ns = parse_rfc3339(text)
            self._text = text
        return self._ns
