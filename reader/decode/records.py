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
from google.cloud.spanner_v1.types import PartialResultSet, TypeCode
from google.protobuf.struct_pb2 import Value

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

_PartialResultSet: Final[Any] = PartialResultSet.pb(PartialResultSet()).__class__
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


class ResultRows:
    """The rows of the messages of any query, in the order in which they came.

    Args:
        columns: the number of values in a row.

    Attributes:
        metadata: the result set's, once the first message has come.
        has_partial_value: the next message continues a value that this one began.
    """

    def __init__(self, columns: int) -> None:
        self.metadata: Any = None
        self._columns = columns
        self._values: list[Any] = []
        self.has_partial_value = False

    def feed(self, message: bytes) -> list[list[Any]]:
        """Return the rows that a serialized PartialResultSet completes, as google.protobuf.Values.

        Raises:
            DecodeError: the message is not as Spanner documents it.
        """
        try:
            part = _PartialResultSet.FromString(message)
        except Exception as error:
            raise DecodeError(f"a message is not a PartialResultSet: {error}") from error
        if self.metadata is None:
            self.metadata = part.metadata
        values = list(part.values)
        if self.has_partial_value and values:
            values[0] = merge_chunk(self._values.pop(), values[0])
        self.has_partial_value = part.chunked_value if values else self.has_partial_value
        self._values += values
        whole = len(self._values) - self.has_partial_value
        count = whole // self._columns
        rows = [self._values[i * self._columns : (i + 1) * self._columns] for i in range(count)]
        del self._values[: count * self._columns]
        return rows


def merge_chunk(left: Any, right: Any) -> Any:
    """Join two pieces of a google.protobuf.Value, by PartialResultSet.chunked_value's rules.

    Strings are joined. Lists are joined, too; if the last item on the left and the first on the
    right can be pieces of one value, these two are merged first.

    Raises:
        DecodeError: the pieces are of kinds that never come in pieces.
    """
    kind = left.WhichOneof("kind")
    if kind != right.WhichOneof("kind") or kind not in ("string_value", "list_value"):
        raise DecodeError(f"values of kinds {kind} and {right.WhichOneof('kind')} can't be merged.")
    if kind == "string_value":
        left.string_value += right.string_value
        return left
    ours, theirs = left.list_value.values, right.list_value.values
    rest = list(theirs)
    if ours and rest and _is_cut(ours[-1], rest[0]):
        merge_chunk(ours[-1], rest.pop(0))
    ours.extend(rest)
    return left


def _is_cut(left: Any, right: Any) -> bool:
    kind = left.WhichOneof("kind")
    return kind == right.WhichOneof("kind") and kind in ("string_value", "list_value")


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
        outer = _positions(element_type)
        try:
            self._data = outer["data_change_record"]
            self._heartbeat = outer["heartbeat_record"]
            self._children = outer["child_partitions_record"]
            data = _positions(_element(element_type, self._data))
            self._order = tuple(data[name] for name in DATA_CHANGE_FIELDS)
        except KeyError as error:
            raise UnsupportedStreamError(f"change records have no field {error}.") from error
        self._column_types: dict[bytes, tuple[ColumnType, ...]] = {}
        self._timestamp = _LastTimestamp()

    def decode(self, value: Any) -> list[ChangeRecord]:
        records: list[ChangeRecord] = []
        for struct in value.list_value.values:
            kinds = struct.list_value.values
            records.extend(map(self._data_change, kinds[self._data].list_value.values))
            records.extend(
                HeartbeatRecord(parse_rfc3339(item.list_value.values[0].string_value))
                for item in kinds[self._heartbeat].list_value.values
            )
            records.extend(map(_child_partitions, kinds[self._children].list_value.values))
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
            tuple([_mod(mod) for mod in f[6].list_value.values]),
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
            column_types = self._column_types[key] = _column_types(value)
        return column_types


def column_types_of(serialized: bytes) -> tuple[ColumnType, ...]:
    """Return the column types in a serialized google.protobuf.Value of GoogleSQL."""
    return _column_types(Value.FromString(serialized))


def _column_types(value: Any) -> tuple[ColumnType, ...]:
    rows = (column.list_value.values for column in value.list_value.values)
    return tuple(
        ColumnType(c[0].string_value, c[1].string_value, c[2].bool_value, int(_int(c[3])))
        for c in rows
    )


def _positions(struct: Any) -> dict[str, int]:
    return {field.name: i for i, field in enumerate(struct.struct_type.fields)}


def _element(struct: Any, position: int) -> Any:
    return struct.struct_type.fields[position].type_.array_element_type


def _int(value: Any) -> str:
    return value.string_value or str(int(value.number_value))


def _mod(value: Any) -> Mod:
    cells = value.list_value.values
    return Mod(_json_text(cells[0]), _json_text(cells[1]), _json_text(cells[2]))


def _json_text(value: Any) -> str | None:
    # An empty string is not valid JSON, so only NULL can look empty.
    return value.string_value or None


def _child_partitions(value: Any) -> ChildPartitionsRecord:
    start, sequence, children = value.list_value.values
    return ChildPartitionsRecord(
        parse_rfc3339(start.string_value),
        sequence.string_value,
        tuple(
            ChildPartition(
                child.list_value.values[0].string_value,
                # Spanner's documentation shows [NULL] for the parents of the first partitions.
                frozenset(
                    parent.string_value
                    for parent in child.list_value.values[1].list_value.values
                    if parent.string_value
                ),
            )
            for child in children.list_value.values
        ),
    )


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
