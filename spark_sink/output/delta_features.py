"""What a Delta table has: columns, and what delta-rs can't write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Schema, WriterProperties

# With it, columns have other names in the files.
COLUMN_MAPPING: Final = "delta.columnMapping.mode"
# Marks of rows that are gone, beside the files; and the property by which a table may have them.
DELETION_VECTORS: Final = "deletionVectors"
ENABLE_DELETION_VECTORS: Final = "delta.enableDeletionVectors"
_CONSTRAINTS: Final = "delta.constraints."
_NULLABILITY: Final = ("nullable", "containsNull", "valueContainsNull", "metadata")


def has_column_mapping(table: DeltaTable) -> bool:
    """Return whether a table's files have other names for its columns."""
    return maps_columns(table.metadata().configuration)


def maps_columns(properties: Mapping[str, str]) -> bool:
    """Return whether properties give the columns of a table other names in its files."""
    return properties.get(COLUMN_MAPPING, "none") != "none"


def demands_on_rows(table: DeltaTable) -> list[str]:
    """Return what a table asks of rows beyond their columns and types, which no file proves.

    Constraints, columns that must not be NULL, and columns with values of the table's own making.
    """
    properties = [name for name in table.metadata().configuration if name.startswith(_CONSTRAINTS)]
    columns = json.loads(table.schema().to_json())["fields"]
    return properties + [
        f"the column {column['name']} {column['metadata'] or 'NOT NULL'}"
        for column in columns
        if not column["nullable"] or column["metadata"].keys() - {"comment"}
    ]


def inexact_statistics(types: Mapping[str, str]) -> list[str]:
    """Return the columns by whose statistics, as delta-rs writes them, readers skip files wrongly.

    Those of floating-point numbers ignore NaN, which for Spark is larger than all others. Those of
    decimals are floating-point numbers themselves (1.6.6).

    Args:
        types: as Delta's log has them, by column.
    """
    return [name for name, kind in types.items() if kind.startswith(("double", "float", "decimal"))]


def without_statistics(names: Iterable[str]) -> WriterProperties:
    """Return how delta-rs writes files without statistics of some columns."""
    from deltalake import ColumnProperties, WriterProperties

    none = ColumnProperties(statistics_enabled="NONE")
    return WriterProperties(column_properties=dict.fromkeys(names, none))


def column_types(schema: Schema) -> dict[str, str]:
    """Return the types of columns, as Delta's log has them, by name.

    Whether what is in arrays, maps and structs may be NULL is left out.
    """
    fields = json.loads(schema.to_json(), object_hook=_without_nullability)["fields"]
    return {
        field["name"]: kind if isinstance(kind := field["type"], str) else json.dumps(kind)
        for field in fields
    }


def _without_nullability(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in _NULLABILITY}


def nullable(schema: pa.Schema) -> Schema:
    """Return columns of which all may be NULL, as in the tables that Spark creates."""
    import pyarrow as pa
    from deltalake import Schema

    return Schema.from_arrow(pa.schema([column.with_nullable(True) for column in schema]))
