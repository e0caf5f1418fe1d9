"""PartialResultSets as Spanner sends them, made from Python values for tests."""

import json
from collections.abc import Sequence
from typing import Any

from google.cloud.spanner_v1.types import PartialResultSet, TypeCode
from google.protobuf.struct_pb2 import NULL_VALUE, Value

from slackwater.reader.records import (
    ChangeRecord,
    ChildPartitionsRecord,
    DataChangeRecord,
    HeartbeatRecord,
)
from slackwater.timestamp import format_rfc3339

PartialResultSetPb: Any = PartialResultSet.pb(PartialResultSet()).__class__

_MOD = ("keys", "new_values", "old_values")
_COLUMN = ("name", "type", "is_primary_key", "ordinal_position")
_DATA = (
    "commit_timestamp",
    "record_sequence",
    "server_transaction_id",
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


def value(of: Any) -> Value:
    """Return a google.protobuf.Value of None, bool, str or nested lists."""
    made = Value()
    if of is None:
        made.null_value = NULL_VALUE
    elif isinstance(of, bool):
        made.bool_value = of
    elif isinstance(of, str):
        made.string_value = of
    else:
        made.list_value.SetInParent()
        made.list_value.values.extend(value(item) for item in of)
    return made


def googlesql_row(record: ChangeRecord) -> Value:
    """Return the ChangeRecord column of one row in GoogleSQL."""
    data, heartbeat, children = [], [], []
    if isinstance(record, DataChangeRecord):
        data.append(
            [
                format_rfc3339(record.commit_timestamp_ns),
                record.record_sequence,
                record.server_transaction_id,
                record.is_last_record_in_transaction_in_partition,
                record.table_name,
                [[c.name, c.type, c.is_primary_key, str(c.ordinal_position)] for c in record[5]],
                [list(mod) for mod in record.mods],
                record.mod_type,
                record.value_capture_type,
                str(record.number_of_records_in_transaction),
                str(record.number_of_partitions_in_transaction),
                record.transaction_tag,
                record.is_system_transaction,
            ]
        )
    elif isinstance(record, HeartbeatRecord):
        heartbeat.append([format_rfc3339(record.timestamp_ns)])
    else:
        assert isinstance(record, ChildPartitionsRecord)
        children.append(
            [
                format_rfc3339(record.start_timestamp_ns),
                record.record_sequence,
                [[c.token, sorted(c.parent_partition_tokens)] for c in record.child_partitions],
            ]
        )
    return value([[data, heartbeat, children]])


def postgresql_row(record: ChangeRecord, *, is_spaced: bool = False) -> Value:
    """Return the JSON column of one row in PostgreSQL, which writes UTC differently.

    The emulator writes no space between values and its keys in order; is_spaced does neither.
    """

    def stamp(timestamp_ns: int) -> str:
        return format_rfc3339(timestamp_ns).replace("Z", "+00:00")

    body: dict[str, Any]
    if isinstance(record, DataChangeRecord):
        fields = record._asdict()
        fields["commit_timestamp"] = stamp(fields.pop("commit_timestamp_ns"))
        fields["column_types"] = [c._asdict() | {"type": json.loads(c.type)} for c in record[5]]
        fields["mods"] = [
            {
                name: None if text is None else json.loads(text)
                for name, text in mod._asdict().items()
            }
            for mod in record.mods
        ]
        fields["column_types"] = [dict(sorted(c.items())) for c in fields["column_types"]]
        body = {"data_change_record": fields if is_spaced else dict(sorted(fields.items()))}
    elif isinstance(record, HeartbeatRecord):
        body = {"heartbeat_record": {"timestamp": stamp(record.timestamp_ns)}}
    else:
        assert isinstance(record, ChildPartitionsRecord)
        body = {
            "child_partitions_record": {
                "start_timestamp": stamp(record.start_timestamp_ns),
                "record_sequence": record.record_sequence,
                "child_partitions": [
                    {"token": c.token, "parent_partition_tokens": sorted(c.parent_partition_tokens)}
                    for c in record.child_partitions
                ],
            }
        }
    if is_spaced:
        return value(json.dumps(body, ensure_ascii=False))
    return value(json.dumps(body, ensure_ascii=False, separators=(",", ":")))


def messages(rows: Sequence[Value], *, is_postgresql: bool) -> list[bytes]:
    """Return one message for each row, the first with the metadata."""
    parts = [PartialResultSetPb(values=[row]) for row in rows] or [PartialResultSetPb()]
    parts[0].metadata.CopyFrom(postgresql_metadata() if is_postgresql else googlesql_metadata())
    return [part.SerializeToString() for part in parts]


def postgresql_metadata() -> Any:
    metadata = PartialResultSetPb().metadata
    metadata.row_type.fields.add(name="changerecord").type_.code = 11
    return metadata


def googlesql_metadata(data_fields: Sequence[str] = _DATA) -> Any:
    metadata = PartialResultSetPb().metadata
    column = metadata.row_type.fields.add(name="ChangeRecord")
    kinds = {
        "data_change_record": {name: _DATA_TYPES.get(name, "STRING") for name in data_fields},
        "heartbeat_record": {"timestamp": "TIMESTAMP"},
        "child_partitions_record": {
            "start_timestamp": "TIMESTAMP",
            "record_sequence": "STRING",
            "child_partitions": [{"token": "STRING", "parent_partition_tokens": ["STRING"]}],
        },
    }
    _set_type(column.type_, [{name: [fields] for name, fields in kinds.items()}])
    return metadata


_DATA_TYPES: dict[str, Any] = {
    "commit_timestamp": "TIMESTAMP",
    "is_last_record_in_transaction_in_partition": "BOOL",
    "column_types": [
        {"name": "STRING", "type": "JSON", "is_primary_key": "BOOL", "ordinal_position": "INT64"}
    ],
    "mods": [{"keys": "JSON", "new_values": "JSON", "old_values": "JSON"}],
    "number_of_records_in_transaction": "INT64",
    "number_of_partitions_in_transaction": "INT64",
    "is_system_transaction": "BOOL",
}


def _set_type(of: Any, kind: Any) -> None:
    """Write a type: a list is an array of its only item, a dict a struct, a text a scalar."""
    if isinstance(kind, list):
        of.code = TypeCode.ARRAY
        _set_type(of.array_element_type, kind[0])
    elif isinstance(kind, dict):
        of.code = TypeCode.STRUCT
        for name, field in kind.items():
            _set_type(of.struct_type.fields.add(name=name).type_, field)
    else:
        of.code = getattr(TypeCode, kind)
