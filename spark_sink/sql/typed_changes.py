"""Typed changes: each mod of an epoch's records as a row whose values are columns.

What the envelope flat says as JSON: the key, the row before and after, and the record's metadata.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.text import identifier, literal
from slackwater.spark_sink.sql.types import is_bad_value, spark_value

KEY: Final = "key"
BEFORE: Final = "before"
AFTER: Final = "after"
# Struct columns of a table's own columns, each with the JSON of a mod that it is made of.
_MAPS: Final = {KEY: "keys", BEFORE: "old_values", AFTER: "new_values"}
PARTS: Final = tuple(_MAPS)
GIVEN: Final = f"given STRUCT<{BEFORE}: ARRAY<STRING>, {AFTER}: ARRAY<STRING>>"
PLACE: Final[Mapping[str, str]] = {
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
# What names one mod, also among an initial scan's rows, which belong to no transaction.
MOD: Final = ("server_transaction_id", "record_sequence", "mod_number", "key")

# By part the fields of its struct, in their order, each with its Spark type.
Shape = Mapping[str, Mapping[str, str]]
_MAP: Final = "map<string, string>"
_SAYS_NOTHING: Final = {BEFORE: "INSERT", AFTER: "DELETE"}


def shape_of(columns: Sequence[Column]) -> dict[str, dict[str, str]]:
    """The structs that a table's columns need; one without fields can't be, and is left out."""
    everything = {column.name: column.spark_type for column in columns}
    key = {column.name: column.spark_type for column in columns if column.is_key}
    found = {KEY: key, BEFORE: everything, AFTER: everything}
    return {part: fields for part, fields in found.items() if fields}


def typed_changes(
    changes: DataFrame,
    table: str,
    columns: Sequence[Column],
    shape: Shape,
    *,
    is_checked: bool = False,
) -> DataFrame:
    """One row a mod.

    Returns:
        row: struct of the typed changelog's columns. key: JSON of the key. bad_columns: names of
        the columns whose values are none of their types, if is_checked. And the columns of MOD.

    Args:
        changes: rows of the output's contract.
        table: the table's full name.
        columns: those that the records name.
        shape: what the typed changelog has; a field that no column fills is NULL.
        is_checked: a value that is none of its type does not fail but is NULL, and named.
    """
    of_record = [name for name in (*PLACE, *METADATA) if name != "mod_number"]
    mods = changes.where(F.col("table_name") == table).selectExpr(
        *of_record, "posexplode(mods) AS (mod_number, mod)"
    )
    maps = mods.selectExpr(
        *(*of_record, "mod_number", "mod.keys AS key"),
        *(f"from_json(mod.{source}, '{_MAP}') AS {source}" for source in _MAPS.values()),
    )
    cast = "TRY_CAST" if is_checked else "CAST"
    fields = [
        *PLACE,
        *(_part(part, shape[part], columns, cast) for part in PARTS if part in shape),
        _given(columns),
        *METADATA,
    ]
    bad = [f"{_bad(columns)} AS bad_columns"] if is_checked else []
    return maps.selectExpr(*MOD, f"struct({', '.join(fields)}) AS row", *bad)


def _part(part: str, fields: Mapping[str, str], columns: Sequence[Column], cast: str) -> str:
    """An expression of one of the structs, NULL where the change says nothing of it."""
    # Neither Spark nor Spanner tells upper from lower case in names.
    by_name = {column.name.lower(): column for column in columns}
    values = ", ".join(
        f"{_value(part, by_name.get(name.lower()), kind, cast)} AS {identifier(name)}"
        for name, kind in fields.items()
    )
    return f"{_where_said(part, f'struct({values})')} AS {part}"


def _value(part: str, column: Column | None, kind: str, cast: str) -> str:
    if column is None:
        # Of a column that was dropped, or that later records of the epoch lack.
        return f"CAST(NULL AS {kind})"
    source = "keys" if column.is_key else _MAPS[part]
    return spark_value(f"{source}[{literal(column.name)}]", column.spanner_type, cast=cast)


def _given(columns: Sequence[Column]) -> str:
    """Which columns the change names: one that it does not is NULL in the structs, too."""
    names = ", ".join(literal(column.name) for column in columns if not column.is_key)
    listed = f"CAST(array({names}) AS array<string>)"
    found = {
        part: f"filter({listed}, name -> map_contains_key({_MAPS[part]}, name))"
        for part in (BEFORE, AFTER)
    }
    fields = ", ".join(f"{_where_said(part, value)} AS {part}" for part, value in found.items())
    return f"struct({fields}) AS given"


def _where_said(part: str, value: str) -> str:
    if part not in _SAYS_NOTHING:
        return value
    return f"CASE WHEN mod_type != {literal(_SAYS_NOTHING[part])} THEN {value} END"


def _bad(columns: Sequence[Column]) -> str:
    names = (
        f"CASE WHEN {' OR '.join(_is_bad(column))} THEN {literal(column.name)} END"
        for column in columns
    )
    return f"array_compact(CAST(array({', '.join(names)}) AS array<string>))"


def _is_bad(column: Column) -> list[str]:
    sources = ("keys",) if column.is_key else (_MAPS[BEFORE], _MAPS[AFTER])
    texts = (f"{source}[{literal(column.name)}]" for source in sources)
    return [is_bad_value(text, column.spanner_type) for text in texts]
