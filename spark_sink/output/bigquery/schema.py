"""BigQuery's columns for Arrow's, and rows as they are stored there."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.cloud.bigquery import SchemaField

from slackwater.spark_sink.errors import BigQueryError

_TYPES: Final = {
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BYTES",
    pa.bool_(): "BOOLEAN",
    pa.int64(): "INTEGER",
    pa.float64(): "FLOAT",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.decimal128(38, 9): "NUMERIC",
}
# Types that BigQuery has no other word for. A column's description says which one it is.
_NARROW: Final = {pa.int32(): pa.int64(), pa.float32(): pa.float64()}
_BY_DESCRIPTION: Final = {str(kind): kind for kind in _NARROW}
# By all names that BigQuery has for a type.
_SYNONYMS: Final = {
    "STRUCT": "RECORD",
    "INT64": "INTEGER",
    "BOOL": "BOOLEAN",
    "FLOAT64": "FLOAT",
}
_ARROW_TYPES: Final = {name: kind for kind, name in _TYPES.items() if kind != pa.large_string()}


def fields_of(schema: Iterable[pa.Field]) -> list[SchemaField]:
    """Return the columns of a table that holds rows of a schema; all may be NULL but arrays."""
    return [_field(field) for field in schema]


def _field(field: pa.Field) -> SchemaField:
    kind, mode = field.type, "NULLABLE"
    if pa.types.is_list(kind):
        kind, mode = kind.value_type, "REPEATED"
    if pa.types.is_struct(kind):
        return SchemaField(field.name, "RECORD", mode, fields=[_field(part) for part in kind])
    if kind in _NARROW:
        return SchemaField(field.name, _TYPES[_NARROW[kind]], mode, description=str(kind))
    return SchemaField(field.name, _TYPES[kind], mode)


def schema_of(fields: Sequence[SchemaField]) -> pa.Schema:
    """Return the schema of rows of a table; columns that no row of ours can have are left out."""
    parts = [(field, _arrow_type(field)) for field in fields]
    return pa.schema([(field.name, kind) for field, kind in parts if kind is not None])


def _arrow_type(field: SchemaField) -> pa.DataType | None:
    name = _SYNONYMS.get(field.field_type, field.field_type)
    kind = _BY_DESCRIPTION.get(field.description or "") or _ARROW_TYPES.get(name)
    if name == "RECORD":
        kind = pa.struct(list(schema_of(field.fields)))
    return pa.list_(kind) if kind is not None and field.mode == "REPEATED" else kind


def with_fields(there: Sequence[SchemaField], added: Sequence[SchemaField]) -> list[SchemaField]:
    """Return a table's columns and new ones; of a struct that is there, the new fields."""
    by_name = {field.name.lower(): field for field in there}
    for field in added:
        old = by_name.get(field.name.lower())
        if old is not None:
            parts = with_fields(old.fields, field.fields)
            by_name[field.name.lower()] = SchemaField(old.name, "RECORD", old.mode, fields=parts)
        else:
            by_name[field.name.lower()] = field
    return list(by_name.values())


def require_fields(path: str, there: Sequence[SchemaField], wanted: Sequence[SchemaField]) -> None:
    """Require that a table has the columns of rows; it may have more, which are NULL then.

    Raises:
        BigQueryError: one is missing, or is another one.
    """
    by_name = {field.name: field for field in there}
    for field in wanted:
        other = by_name.get(field.name)
        if other is None or _shape(other) != _shape(field):
            has = "no such column" if other is None else f"{other.field_type} {other.mode}"
            raise BigQueryError(
                f"{path}: column {field.name} is {field.field_type} {field.mode} in a changelog,"
                f" and the table has {has}.",
                "Name another table, or rename this one",
            )


def _shape(field: SchemaField) -> object:
    name = _SYNONYMS.get(field.field_type, field.field_type)
    return name, field.mode == "REPEATED", {part.name: _shape(part) for part in field.fields}


def stored_batches(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows as they are stored: see docs/bigquery.md for what an array loses."""
    for batch in rows:
        if batch.num_rows:
            yield pa.RecordBatch.from_arrays(list(map(_stored, batch.columns)), batch.schema.names)


def _stored(values: Any) -> Any:
    kind = values.type
    if pa.types.is_struct(kind):
        # Without what a NULL's fields may hold.
        parts = list(map(_stored, values.flatten()))
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(parts, names, mask=values.is_null())
    if pa.types.is_list(kind):
        elements = pc.list_flatten(values)
        is_value = elements.is_valid()
        parents = pc.list_parent_indices(values).filter(is_value).to_numpy()
        lengths = np.bincount(parents, minlength=len(values))
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        return pa.ListArray.from_arrays(offsets, _stored(elements.filter(is_value)))
    return values.cast(_NARROW.get(kind, kind))
