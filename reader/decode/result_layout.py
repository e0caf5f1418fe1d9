"""The order of a change record's fields in the rows of a result set, from its metadata."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from google.cloud.spanner_v1.types import ResultSetMetadata, TypeCode
from google.protobuf.message import DecodeError

from slackwater.reader.decode.googlesql_records import (
    COLUMN_TYPE_FIELDS,
    DATA_CHANGE_FIELDS,
    MOD_FIELDS,
    items_of,
)
from slackwater.reader.decode.proto_records import is_change_stream_record

_Metadata: Final[Any] = ResultSetMetadata.pb(ResultSetMetadata()).__class__
_METADATA_TAG: Final = 0x0A
_KINDS: Final = ("data_change_record", "heartbeat_record", "child_partitions_record")


@dataclass(frozen=True, slots=True)
class Layout:
    """The way in which rows hold their records.

    Attributes:
        is_json: the rows are PostgreSQL's JSON texts.
        is_proto: the rows are those of mutable key ranges, in either dialect.
        field_names: the fields of a GoogleSQL data change record, in the order of the rows.
    """

    is_json: bool
    field_names: tuple[str, ...] = ()
    is_proto: bool = False


def form_of(message: bytes) -> tuple[bytes, Layout | None] | None:
    """Return the serialized ResultSetMetadata of a query's first message, and its rows' layout.

    The rows are not parsed. None if the message does not begin with metadata.
    """
    if not message or message[0] != _METADATA_TAG:
        return None
    size = shift = 0
    for at in range(1, min(6, len(message))):
        byte = message[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            metadata = message[at + 1 : at + 1 + size]
            try:
                return metadata, _layout(metadata)
            except DecodeError:
                break
    return None


@lru_cache(maxsize=64)
def _layout(metadata: bytes) -> Layout | None:
    """Return the layout of rows; the queries of a stream have the same, by the thousand."""
    return layout_of(_Metadata.FromString(metadata))


def layout_of(metadata: Any) -> Layout | None:
    """Return the layout of rows with this metadata.

    None if the three kinds of record, or the fields of a column type or a mod, are not in the
    documented order: such rows are decoded by reader.decode.records, which finds the fields by
    their names.
    """
    fields = metadata.row_type.fields
    if len(fields) == 1 and fields[0].type_.code == TypeCode.JSON:
        return Layout(is_json=True)
    if len(fields) == 1 and is_change_stream_record(fields[0].type_):
        return Layout(is_json=False, is_proto=True)
    if len(fields) != 1 or fields[0].type_.code != TypeCode.ARRAY:
        return None
    kinds = fields[0].type_.array_element_type.struct_type.fields
    if tuple(kind.name for kind in kinds) != _KINDS:
        return None
    data = kinds[0].type_.array_element_type
    field_names = _field_names(data)
    if not set(DATA_CHANGE_FIELDS) <= set(field_names):
        return None
    is_documented = (
        _field_names(items_of(data, "column_types")) == COLUMN_TYPE_FIELDS
        and _field_names(items_of(data, "mods")) == MOD_FIELDS
    )
    return Layout(False, field_names) if is_documented else None


def _field_names(struct: Any) -> tuple[str, ...]:
    return tuple(field.name for field in struct.struct_type.fields)
