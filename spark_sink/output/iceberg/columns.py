"""The columns and data files of an Iceberg table, converted between Arrow and Iceberg."""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.manifest import DataFileContent, FileFormat
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DateType,
    IcebergType,
    ListType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from slackwater.spark_sink.output.iceberg.file_rows import FIELD_ID
from slackwater.spark_sink.output.table_commits import DataFile
from slackwater.timestamp import ns_to_us, parse_rfc3339

# pyiceberg writes no later ones (0.12.0).
_FORMAT_VERSION_MAX: Final = 2
_EPOCH: Final = date(1970, 1, 1)


def iceberg_schema(columns: pa.Schema) -> Schema:
    """Return columns as Iceberg has them, without identifiers; all of them may be NULL."""
    schema: Schema = Catalog._convert_schema_if_needed(
        pa.schema([column.with_nullable(True) for column in columns])
    )
    return schema


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return a table's columns as Arrow has them."""
    made: pa.Schema = schema_to_pyarrow(schema, include_field_ids=False)
    return made


def with_field_ids(columns: pa.Schema, schema: Schema) -> pa.Schema:
    """Return columns with the identifiers that a table's have, by which readers find them.

    Args:
        columns: whose names and types the table has; see column_types().
        schema: the table's.
    """
    return pa.schema([_with_id(column, schema.find_field(column.name)) for column in columns])


def _with_id(column: pa.Field, own: NestedField) -> pa.Field:
    kind, own_type = column.type, own.field_type
    if isinstance(own_type, StructType):
        fields = {field.name: field for field in own_type.fields}
        kind = pa.struct([_with_id(part, fields[part.name]) for part in kind])
    elif isinstance(own_type, ListType):
        kind = pa.list_(_with_id(kind.value_field, own_type.element_field))
    elif isinstance(own_type, MapType):
        key = _with_id(kind.key_field, own_type.key_field)
        kind = pa.map_(key, _with_id(kind.item_field, own_type.value_field))
    return pa.field(column.name, kind, column.nullable, {FIELD_ID: str(own.field_id)})


def column_types(schema: Schema) -> dict[str, str]:
    """Return the types of columns by their names, without whether they may be NULL."""
    return {field.name: _type_text(field.field_type) for field in schema.fields}


def new_columns(columns: pa.Schema, partition_by: Sequence[str]) -> tuple[Schema, PartitionSpec]:
    """Return the columns of a new table, and its partitions.

    Args:
        columns: as Arrow has them.
        partition_by: the partition columns.
    """
    schema = assign_fresh_schema_ids(iceberg_schema(columns))
    fields = [
        PartitionField(
            schema.find_field(name).field_id,
            PARTITION_FIELD_ID_START + place,
            IdentityTransform(),
            name,
        )
        for place, name in enumerate(partition_by)
    ]
    return schema, PartitionSpec(*fields)


def refused_features(table: Table, columns: pa.Schema) -> list[str]:
    """Return the features of a table for which its rows can't be written."""
    if table.format_version > _FORMAT_VERSION_MAX:
        return [f"format version {table.format_version}"]
    if partition_columns(table) is None:
        fields = ", ".join(f"{f.name}: {f.transform}" for f in table.spec().fields)
        return [f"the partitions {fields}"]
    return _demands_on_rows(table.schema(), columns)


def _demands_on_rows(schema: Schema, columns: pa.Schema) -> list[str]:
    """Return a table's demands on rows beyond their columns and types."""
    names = set(columns.names)
    return [f"the column {field.name} NOT NULL" for field in schema.fields if field.required] + [
        f"the column {field.name} with a default"
        for field in schema.fields
        if field.name not in names and field.write_default is not None
    ]


def _type_text(kind: IcebergType) -> str:
    """Return a type without identifiers, and whether its parts may be NULL."""
    if isinstance(kind, StructType):
        parts = (f"{field.name}: {_type_text(field.field_type)}" for field in kind.fields)
        return f"struct<{', '.join(parts)}>"
    if isinstance(kind, ListType):
        return f"list<{_type_text(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_type_text(kind.key_type)}, {_type_text(kind.value_type)}>"
    return str(kind)


def partition_columns(table: Table) -> tuple[str, ...] | None:
    """Return the columns by which a table is partitioned; None if it is otherwise."""
    fields = table.spec().fields
    if any(not isinstance(field.transform, IdentityTransform) for field in fields):
        return None
    return tuple(table.schema().find_column_name(field.source_id) or "" for field in fields)


def data_file(table: Table, file: DataFile, partition: Record | None = None) -> IcebergFile:
    """Return a file as a table's manifests name it, with the bounds of its columns.

    Args:
        table: the table.
        file: the file.
        partition: as in a manifest; None to make it from the file's.
    """
    schema, spec = table.schema(), table.spec()
    stats = json.loads(file.stats) if file.stats else {}
    bounds: dict[str, dict[int, bytes]] = {"minValues": {}, "maxValues": {}}
    for name, by_id in bounds.items():
        for column, value in stats.get(name, {}).items():
            field = schema.find_field(column)
            kind: Any = field.field_type
            by_id[field.field_id] = to_bytes(kind, _bound(kind, value))
    nulls = {schema.find_field(c).field_id: n for c, n in stats.get("nullCount", {}).items()}
    rows = int(stats.get("numRecords", 0))
    made = IcebergFile.from_args(
        _table_format_version=table.format_version,
        content=DataFileContent.DATA,
        file_path=f"{table.location().rstrip('/')}/{file.name}",
        file_format=FileFormat.PARQUET,
        partition=_partition(schema, spec, file.partition) if partition is None else partition,
        file_size_in_bytes=file.size,
        record_count=rows,
        column_sizes={},
        value_counts=dict.fromkeys(nulls, rows),
        null_value_counts=nulls,
        nan_value_counts={},
        lower_bounds=bounds["minValues"],
        upper_bounds=bounds["maxValues"],
        split_offsets=None,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    made.spec_id = spec.spec_id
    return made


def _bound(kind: IcebergType, value: Any) -> Any:
    is_time = isinstance(kind, (TimestampType, TimestamptzType))
    return ns_to_us(parse_rfc3339(value)) if is_time else value


def _partition(schema: Schema, spec: PartitionSpec, values: Mapping[str, str | None]) -> Record:
    own = []
    for field in spec.fields:
        column = schema.find_field(field.source_id)
        own.append(_partition_value(column.field_type, values[column.name]))
    return Record(*own)


def _partition_value(kind: IcebergType, text: str | None) -> str | int | None:
    if text is None or isinstance(kind, StringType):
        return text
    if isinstance(kind, DateType):
        return (date.fromisoformat(text) - _EPOCH).days
    return int(text)


def columns_of_files(table: Table) -> pa.Schema:
    """Return a table's columns as its files have them."""
    schema = arrow_schema(table.schema())
    plain = pa.schema([field.with_type(_small(field.type)) for field in schema])
    return with_field_ids(plain, table.schema())


def _small(kind: pa.DataType) -> pa.DataType:
    """Return a type without the large offsets that pyiceberg reads by."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([part.with_type(_small(part.type)) for part in kind])
    if pa.types.is_map(kind):
        key, item = kind.key_field, kind.item_field
        return pa.map_(key.with_type(_small(key.type)), item.with_type(_small(item.type)))
    return kind
