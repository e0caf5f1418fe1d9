"""The default stream of a table with a primary key: each row replaces or deletes that of its key.

BigQuery orders the changes of a key by their sequence numbers, and drops those that are older than
what it has; so a change that is sent again changes nothing. It takes rows as protocol buffers
only (its documentation, "Stream table updates with change data capture").
"""

import re
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
from google.cloud.bigquery_storage_v1.types import AppendRowsRequest, ProtoRows, ProtoSchema
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from slackwater.grouping import groups_by_size
from slackwater.spark_sink.output.bigquery.address import TableAddress
from slackwater.spark_sink.output.bigquery.appends import REQUEST_MAX, Appends
from slackwater.spark_sink.output.bigquery.clients import Clients

CHANGE_TYPE: Final = "_CHANGE_TYPE"
SEQUENCE_NUMBER: Final = "_CHANGE_SEQUENCE_NUMBER"
_MESSAGE: Final = "Row"
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)
# The option google.cloud.bigquery.storage.v1.column_name of a field, as the wire has its key.
_COLUMN_NAME: Final = (454_943_157 << 3) | 2
# How BigQuery takes values of Arrow's types: its documentation, "Supported protocol buffer and
# Arrow data types". By the names of protobuf's types.
_TYPES: Final[dict[pa.DataType, tuple[str, pa.DataType]]] = {
    pa.string(): ("STRING", pa.string()),
    pa.large_string(): ("STRING", pa.string()),
    pa.binary(): ("BYTES", pa.binary()),
    pa.bool_(): ("BOOL", pa.bool_()),
    pa.int64(): ("INT64", pa.int64()),
    pa.float64(): ("DOUBLE", pa.float64()),
    pa.date32(): ("INT32", pa.int32()),
    pa.timestamp("us", "UTC"): ("INT64", pa.int64()),
    pa.decimal128(38, 9): ("STRING", pa.string()),
}


class UpsertStream:
    """The stream of changes to the rows of a table.

    Args:
        clients: of the table's dataset.
        address: the table's.
    """

    def __init__(self, clients: Clients, address: TableAddress) -> None:
        self._appends = Appends(clients, address)
        self._name = f"{address.resource}/streams/_default"
        # A table that was just made may not be known yet.
        self._is_new = True

    def append(self, batches: Iterable[pa.RecordBatch]) -> None:
        """Append changes, which queries see from now on.

        Args:
            batches: rows as stored_batches() makes them, with the columns CHANGE_TYPE and
                SEQUENCE_NUMBER. Those of a request are seen at once.

        Raises:
            BigQueryError, PublishError: see Appends.append(). Some may have been appended.
        """
        for batch in batches:
            descriptor = descriptor_of(batch.schema)
            for rows in groups_by_size(serialized_rows(descriptor, batch), len, REQUEST_MAX):
                request = partial(self._request, descriptor, rows)
                self._appends.append(request, is_new=self._is_new)
                self._is_new = False

    def _request(self, descriptor: DescriptorProto, rows: list[bytes]) -> AppendRowsRequest:
        data = AppendRowsRequest.ProtoData(
            writer_schema=ProtoSchema(proto_descriptor=descriptor),
            rows=ProtoRows(serialized_rows=rows),
        )
        return AppendRowsRequest(write_stream=self._name, proto_rows=data)


def descriptor_of(schema: pa.Schema) -> DescriptorProto:
    """Return the message type of rows; its fields have the names of columns, or state them."""
    message = DescriptorProto(name=_MESSAGE)
    other = "column_"
    while any(name.startswith(other) for name in schema.names):
        other += "_"
    for number, field in enumerate(schema, 1):
        is_list = pa.types.is_list(field.type)
        kind, _ = _TYPES[field.type.value_type if is_list else field.type]
        label = "REPEATED" if is_list else "OPTIONAL"
        is_plain = _PLAIN_NAME.fullmatch(field.name) is not None
        added = message.field.add(
            name=field.name if is_plain else f"{other}{number}",
            # Those that protobuf makes of address_1 and address1 are equal.
            json_name=f"c{number}",
            number=number,
            type=FieldDescriptorProto.Type.Value(f"TYPE_{kind}"),
            label=FieldDescriptorProto.Label.Value(f"LABEL_{label}"),
        )
        if not is_plain:
            text = field.name.encode()
            added.options.MergeFromString(_varint(_COLUMN_NAME) + _varint(len(text)) + text)
    return message


def serialized_rows(descriptor: DescriptorProto, batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield a batch's rows as messages of a type that is their schema's."""
    pool: Any = DescriptorPool()
    pool.Add(FileDescriptorProto(name="row.proto", syntax="proto2", message_type=[descriptor]))
    make = GetMessageClass(pool.FindMessageTypeByName(_MESSAGE))
    columns = [_sent(column).to_pylist() for column in batch.columns]
    names = [field.name for field in descriptor.field]
    for row in zip(*columns, strict=True):
        yield make(**dict(zip(names, row, strict=True))).SerializeToString()


def _sent(values: pa.Array) -> pa.Array:
    """Return values in the type in which they are sent; no array is NULL."""
    if pa.types.is_list(values.type):
        return pa.ListArray.from_arrays(values.offsets, _sent(values.values))
    if pa.types.is_decimal(values.type):
        # Arrow would write zero as 0E-9.
        texts = [None if value is None else f"{value:f}" for value in values.to_pylist()]
        return pa.array(texts, pa.string())
    return values.cast(_TYPES[values.type][1])


def _varint(number: int) -> bytes:
    parts = []
    while number > 0x7F:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])
