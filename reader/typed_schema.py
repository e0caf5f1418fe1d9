"""The columns of typed changes: each mod of a table's records as a row of typed columns."""

from collections.abc import Collection, Mapping
from typing import Final

import pyarrow as pa

from slackwater.reader.schema import SCHEMA
from slackwater.typed_changes import AFTER, BEFORE, KEY, MOD_NUMBER, NAMED_COLUMNS, SOURCES
from slackwater.typed_values import arrow_type

POSITION: Final = (
    SCHEMA.field("commit_timestamp"),
    SCHEMA.field("server_transaction_id"),
    SCHEMA.field("record_sequence"),
    MOD_NUMBER,
    SCHEMA.field("mod_type"),
)
METADATA: Final = (
    SCHEMA.field("is_last_record_in_transaction_in_partition"),
    SCHEMA.field("value_capture_type"),
    SCHEMA.field("number_of_records_in_transaction"),
    SCHEMA.field("number_of_partitions_in_transaction"),
    SCHEMA.field("transaction_tag"),
    SCHEMA.field("is_system_transaction"),
    SCHEMA.field("partition_token"),
    SCHEMA.field("low_watermark"),
)


def typed_schema(columns: Mapping[str, str], key: Collection[str]) -> pa.Schema:
    """Return the schema of a table's typed changes.

    Args:
        columns: Spanner types by column name, in the table's order.
        key: the names of the primary key's columns; a table may have none.
    """
    fields = [pa.field(name, arrow_type(kind)) for name, kind in columns.items()]
    structs = {KEY: [field for field in fields if field.name in key], BEFORE: fields, AFTER: fields}
    parts = [pa.field(part, pa.struct(structs[part])) for part in SOURCES if structs[part]]
    return pa.schema([*POSITION, *parts, NAMED_COLUMNS, *METADATA])


def is_typed(schema: pa.Schema) -> bool:
    """Return whether a schema is that of a table's typed changes."""
    structs = [field for field in schema if field.name in SOURCES]
    others = [field.name for field in schema if field.name not in SOURCES]
    return others == [field.name for field in (*POSITION, NAMED_COLUMNS, *METADATA)] and all(
        pa.types.is_struct(field.type) for field in structs
    )
