"""Typed rows: each mod of an epoch's records, as Spark's tasks convert it.

A row has the content that the envelope flat has as JSON: the key, the row before and after, and the
record's metadata.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.java import map_in_arrow
from slackwater.spark_sink.sql.columns import Column
from slackwater.typed_changes import (
    BAD_COLUMNS,
    MOD_NUMBER,
    SOURCES,
    RecordColumns,
    in_pieces,
    typed_changes,
)

# Identifies one mod, also among an initial scan's rows, which belong to no transaction.
MOD_ID: Final = ("server_transaction_id", "record_sequence", MOD_NUMBER.name, "key")


def typed_rows(
    changes: DataFrame,
    table: str,
    columns: Sequence[Column],
    schema: StructType,
    *,
    is_checked: bool = False,
) -> DataFrame:
    """Return one row for each mod of a table.

    Returns:
        row: struct of the typed changelog's columns. bad_columns: if is_checked, the columns whose
        values are not of their types. And the columns of MOD_ID, of which key is JSON.

    Args:
        changes: rows of the output's contract.
        table: the table's full name.
        columns: the columns that the records name.
        schema: of the typed changelog.
        is_checked: a value that is not of its column's type becomes NULL and is reported in
            bad_columns; otherwise the query fails.
    """
    texts = [name for name in MOD_ID if name != MOD_NUMBER.name]
    made = StructType().add(MOD_NUMBER.name, IntegerType())
    for name in texts:
        made = made.add(name, StringType())
    made = made.add("row", schema)
    if is_checked:
        made = made.add(BAD_COLUMNS.name, ArrayType(StringType()))
    typed_schema, made_schema = arrow_schema_of(schema), arrow_schema_of(made)
    of_records = record_columns(columns, schema)

    def in_task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for records in (piece for batch in batches for piece in in_pieces(batch)):
            typed = typed_changes(records, table, typed_schema, of_records, is_checked=is_checked)
            arrays = [typed.column(name) for name in typed_schema.names]
            by_name = {
                **dict(zip(typed.schema.names, typed.columns, strict=True)),
                "key": records.column("mods").flatten().field("keys"),
                "row": pa.StructArray.from_arrays(arrays, fields=list(typed_schema)),
            }
            yield pa.RecordBatch.from_arrays(
                [by_name[name] for name in made_schema.names], schema=made_schema
            )

    records = changes.where(F.col("table_name") == table)
    if not of_records.former_types:
        # Tasks know the columns; in each record their list is longer than its own fields.
        records = records.drop("column_types")
    return map_in_arrow(records, in_task, made)


def record_columns(columns: Sequence[Column], schema: StructType) -> RecordColumns:
    """Return how records have the columns: Spark and Spanner both ignore case in names."""
    names = {column.name.lower(): column.name for column in columns}
    structs = [schema[part].dataType for part in SOURCES if part in schema.names]
    fields = {field for struct in structs for field in struct.fieldNames()}  # type: ignore[attr-defined]
    return RecordColumns(
        frozenset(column.name for column in columns if column.is_key),
        {field: names.get(field.lower(), field) for field in fields},
        {column.name: column.former_types for column in columns if column.former_types},
    )
