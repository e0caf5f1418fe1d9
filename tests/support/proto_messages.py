"""The rows of partition_mode MUTABLE_KEY_RANGE, made from our records by protobuf's definitions."""

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from google.cloud.spanner_v1.types import ChangeStreamRecord, TypeCode
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from slackwater.reader.change_stream import Dialect
from slackwater.reader.records import (
    ChangeRecord,
    ColumnType,
    DataChangeRecord,
    HeartbeatRecord,
    PartitionEndRecord,
    PartitionEventRecord,
    PartitionStartRecord,
)
from tests.support.spanner_messages import PartialResultSetPb, value

ChangeStreamRecordPb: Any = ChangeStreamRecord.pb(ChangeStreamRecord()).__class__


def proto_row(record: ChangeRecord) -> Value:
    """Return the only column of one row; it is the same in both dialects."""
    return row_of(proto_record(record))


def row_of(message: Any) -> Value:
    return value(b64encode(message.SerializeToString()).decode())


def proto_metadata(dialect: Dialect) -> Any:
    metadata = PartialResultSetPb().metadata
    if dialect is Dialect.POSTGRESQL:
        metadata.row_type.fields.add(name="read_proto_bytes_orders").type_.code = TypeCode.BYTES
    else:
        kind = metadata.row_type.fields.add(name="ChangeRecord").type_
        kind.code = TypeCode.PROTO
        kind.proto_type_fqn = "google.spanner.v1.ChangeStreamRecord"
    return metadata


def proto_messages(rows: Sequence[Value], dialect: Dialect) -> list[bytes]:
    """Return one message for each row, the first with the metadata."""
    parts = [PartialResultSetPb(values=[row]) for row in rows] or [PartialResultSetPb()]
    parts[0].metadata.CopyFrom(proto_metadata(dialect))
    return [part.SerializeToString() for part in parts]


def proto_record(record: ChangeRecord) -> Any:
    """Return a ChangeStreamRecord."""
    message = ChangeStreamRecordPb()
    match record:
        case DataChangeRecord():
            _fill_data_change(message.data_change_record, record)
        case HeartbeatRecord():
            message.heartbeat_record.timestamp.FromNanoseconds(record.timestamp_ns)
        case PartitionStartRecord():
            start = message.partition_start_record
            start.start_timestamp.FromNanoseconds(record.start_timestamp_ns)
            start.record_sequence = record.record_sequence
            start.partition_tokens.extend(record.partition_tokens)
        case PartitionEndRecord():
            end = message.partition_end_record
            end.end_timestamp.FromNanoseconds(record.end_timestamp_ns)
            end.record_sequence = record.record_sequence
            end.partition_token = record.partition_token
        case PartitionEventRecord():
            event = message.partition_event_record
            event.commit_timestamp.FromNanoseconds(record.commit_timestamp_ns)
            event.record_sequence = record.record_sequence
            event.partition_token = record.partition_token
            for source in record.move_in_sources:
                event.move_in_events.add(source_partition_token=source)
            for destination in record.move_out_destinations:
                event.move_out_events.add(destination_partition_token=destination)
        case _:
            raise TypeError(record)
    return message


def _fill_data_change(data: Any, record: DataChangeRecord) -> None:
    data.commit_timestamp.FromNanoseconds(record.commit_timestamp_ns)
    data.record_sequence = record.record_sequence
    data.server_transaction_id = record.server_transaction_id
    data.is_last_record_in_transaction_in_partition = (
        record.is_last_record_in_transaction_in_partition
    )
    data.table = record.table_name
    for column in record.column_types:
        _add_column(data.column_metadata, column)
    index = {column.name: i for i, column in enumerate(record.column_types)}
    for mod in record.mods:
        message = data.mods.add()
        for field, text in mod._asdict().items():
            _add_values(getattr(message, field), json.loads(text), index)
    data.mod_type = data.ModType.Value(record.mod_type)
    data.value_capture_type = data.ValueCaptureType.Value(record.value_capture_type)
    data.number_of_records_in_transaction = record.number_of_records_in_transaction
    data.number_of_partitions_in_transaction = record.number_of_partitions_in_transaction
    data.transaction_tag = record.transaction_tag
    data.is_system_transaction = record.is_system_transaction


def _add_column(columns: Any, column: ColumnType) -> None:
    message = columns.add(
        name=column.name,
        is_primary_key=column.is_primary_key,
        ordinal_position=column.ordinal_position,
    )
    ParseDict(json.loads(column.type), message.type_)


def _add_values(values: Any, members: Mapping[str, Any], index: Mapping[str, int]) -> None:
    for name, member in members.items():
        added = values.add(column_metadata_index=index[name])
        ParseDict(member, added.value)
