"""Typed changes: each mod of an epoch's records as a row of typed columns.

A row has what the envelope flat has as JSON: the key, the row before and after, and the record's
metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.sql.types import (
    bad_value_condition,
    value_expression,
    values_expression,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY: Final = "key"
BEFORE: Final = "before"
AFTER: Final = "after"
# The struct columns that hold a table's columns, each with the field of a mod that it is made from.
_SOURCES: Final = {KEY: "keys", BEFORE: "old_values", AFTER: "new_values"}
STRUCTS: Final = tuple(_SOURCES)
CHANGED_COLUMNS: Final = f"given STRUCT<{BEFORE}: ARRAY<STRING>, {AFTER}: ARRAY<STRING>>"
POSITION: Final[Mapping[str, str]] = {
    "commit_timestamp": "TIMESTAMP",
    "server_transaction_id": "STRING",
    "record_sequence": "STRING",
    "mod_number": "INT",
    "mod_type": "STRING",
}
METADATA: Final[Mapping[str, str]] = {
    "is_last_record_in_transaction_in_partition": "BOOLEAN",
    "value_capture_type": "STRING",
    "number_of_records_in_transaction": "BIGINT",
    "number_of_partitions_in_transaction": "BIGINT",
    "transaction_tag": "STRING",
    "is_system_transaction": "BOOLEAN",
    "partition_token": "STRING",
    "low_watermark": "TIMESTAMP",
}
# Identifies one mod, also among an initial scan's rows, which belong to no transaction.
MOD_ID: Final = ("server_transaction_id", "record_sequence", "mod_number", "key")

# For each struct its fields in their order, each with its Spark type.
StructFields = Mapping[str, Mapping[str, str]]
_NULL_FOR_MOD_TYPE: Final = {BEFORE: "INSERT", AFTER: "DELETE"}


def struct_fields(columns: Sequence[Column]) -> dict[str, dict[str, str]]:
    """Return the structs that a table's columns need, without those that would have no fields."""
    everything = {column.name: column.spark_type for column in columns}
    key = {column.name: column.spark_type for column in columns if column.is_key}
    structs = {KEY: key, BEFORE: everything, AFTER: everything}
    return {part: fields for part, fields in structs.items() if fields}


def typed_changes(
    changes: DataFrame,
    table: str,
    columns: Sequence[Column],
    structs: StructFields,
    *,
    is_checked: bool = False,
) -> DataFrame:
    """Return one row for each mod.

    Returns:
        row: struct of the typed changelog's columns. key: JSON of the key. bad_columns: if
        is_checked, the columns whose values are not of their types. And the columns of MOD_ID.

    Args:
        changes: rows of the output's contract.
        table: the table's full name.
        columns: the columns that the records name.
        structs: the typed changelog's; a field that no column fills is NULL.
        is_checked: a value that is not of its column's type becomes NULL and is reported in
            bad_columns; otherwise the query fails.
    """
    from pyspark.sql import functions as F

    record_columns = [name for name in (*POSITION, *METADATA) if name != "mod_number"]
    mods = changes.where(F.col("table_name") == table).selectExpr(
        *record_columns, "posexplode(mods) AS (mod_number, mod)"
    )
    maps = mods.selectExpr(
        *(*record_columns, "mod_number", "mod.keys AS key"),
        *(f"{values_expression(f'mod.{source}')} AS {source}" for source in _SOURCES.values()),
    )
    cast = "TRY_CAST" if is_checked else "CAST"
    fields = [
        *POSITION,
        *(_part(part, structs[part], columns, cast) for part in STRUCTS if part in structs),
        _changed_columns(columns),
        *METADATA,
    ]
    bad = [f"{_bad_columns(columns)} AS bad_columns"] if is_checked else []
    return maps.selectExpr(*MOD_ID, f"struct({', '.join(fields)}) AS row", *bad)


def _part(part: str, fields: Mapping[str, str], columns: Sequence[Column], cast: str) -> str:
    """Return the expression of one struct, NULL if the kind of change has no such row."""
    # Spark and Spanner both ignore case in names.
    by_name = {column.name.lower(): column for column in columns}
    values = ", ".join(
        f"{_value(part, by_name.get(name.lower()), kind, cast)} AS {identifier(name)}"
        for name, kind in fields.items()
    )
    return f"{_null_where_not_captured(part, f'struct({values})')} AS {part}"


def _value(part: str, column: Column | None, kind: str, cast: str) -> str:
    if column is None:
        # The column was dropped, or later records of the epoch lack it.
        return f"CAST(NULL AS {kind})"
    source = "keys" if column.is_key else _SOURCES[part]
    return value_expression(f"{source}[{literal(column.name)}]", column.spanner_type, cast=cast)


def _changed_columns(columns: Sequence[Column]) -> str:
    """Return the expression of the names of the columns that a change has; others are NULL."""
    names = ", ".join(literal(column.name) for column in columns if not column.is_key)
    listed = f"CAST(array({names}) AS array<string>)"
    names_by_part = {
        part: f"filter({listed}, name -> map_contains_key({_SOURCES[part]}, name))"
        for part in (BEFORE, AFTER)
    }
    fields = ", ".join(
        f"{_null_where_not_captured(part, value)} AS {part}"
        for part, value in names_by_part.items()
    )
    return f"struct({fields}) AS given"


def _null_where_not_captured(part: str, value: str) -> str:
    if part not in _NULL_FOR_MOD_TYPE:
        return value
    return f"CASE WHEN mod_type != {literal(_NULL_FOR_MOD_TYPE[part])} THEN {value} END"


def _bad_columns(columns: Sequence[Column]) -> str:
    names = (
        f"CASE WHEN {' OR '.join(_bad_value_conditions(column))} THEN {literal(column.name)} END"
        for column in columns
    )
    return f"array_compact(CAST(array({', '.join(names)}) AS array<string>))"


def _bad_value_conditions(column: Column) -> list[str]:
    sources = ("keys",) if column.is_key else (_SOURCES[BEFORE], _SOURCES[AFTER])
    texts = (f"{source}[{literal(column.name)}]" for source in sources)
    return [bad_value_condition(text, column.spanner_type) for text in texts]
