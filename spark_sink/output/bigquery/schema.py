"""BigQuery's columns for Arrow's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from slackwater.spark_sink.errors import BigQueryError

if TYPE_CHECKING:
    from google.cloud.bigquery import SchemaField

_TYPES: Final = {
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BYTES",
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INTEGER",
    pa.int64(): "INTEGER",
    pa.float64(): "FLOAT",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
}


def fields_of(schema: pa.Schema) -> list[SchemaField]:
    """Return the columns of a table that holds rows of a schema; all may be NULL but arrays."""
    return [_field(field) for field in schema]


def _field(field: pa.Field) -> SchemaField:
    from google.cloud.bigquery import SchemaField

    kind, mode = field.type, "NULLABLE"
    if pa.types.is_list(kind):
        kind, mode = kind.value_type, "REPEATED"
    if pa.types.is_struct(kind):
        return SchemaField(field.name, "RECORD", mode, fields=[_field(part) for part in kind])
    return SchemaField(field.name, _TYPES[kind], mode)


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
    kind = {"STRUCT": "RECORD", "INT64": "INTEGER", "BOOL": "BOOLEAN", "FLOAT64": "FLOAT"}
    name = kind.get(field.field_type, field.field_type)
    return name, field.mode == "REPEATED", {part.name: _shape(part) for part in field.fields}
