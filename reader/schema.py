"""The output's columns: the only list of their names, order and types.

The values of changed columns are JSON texts in mods, and a column's type is JSON in column_types,
both as Spanner wrote them: slackwater.column_types decides their types in typed columns.
"""

from typing import Final

import pyarrow as pa

_COLUMN_TYPE = pa.struct(
    [
        ("name", pa.string()),
        ("type", pa.string()),
        ("is_primary_key", pa.bool_()),
        ("ordinal_position", pa.int64()),
    ]
)
_MOD = pa.struct([("keys", pa.string()), ("new_values", pa.string()), ("old_values", pa.string())])
_TIMESTAMP = pa.timestamp("us", tz="UTC")

COLUMN_TYPES: Final = pa.list_(_COLUMN_TYPE)
MODS: Final = pa.list_(_MOD)

SCHEMA: Final = pa.schema(
    [
        ("commit_timestamp", _TIMESTAMP),
        ("server_transaction_id", pa.string()),
        ("record_sequence", pa.string()),
        ("is_last_record_in_transaction_in_partition", pa.bool_()),
        ("table_name", pa.string()),
        ("column_types", COLUMN_TYPES),
        ("mods", MODS),
        ("mod_type", pa.string()),
        ("value_capture_type", pa.string()),
        ("number_of_records_in_transaction", pa.int64()),
        ("number_of_partitions_in_transaction", pa.int64()),
        ("transaction_tag", pa.string()),
        ("is_system_transaction", pa.bool_()),
        ("partition_token", pa.string()),
        ("low_watermark", _TIMESTAMP),
    ]
)

# The columns of a data change record, without the two that Slackwater adds.
DATA_SCHEMA: Final = pa.schema([SCHEMA.field(i) for i in range(13)])

_DDL = {
    pa.string(): "STRING",
    pa.bool_(): "BOOLEAN",
    pa.int64(): "BIGINT",
    pa.binary(): "BINARY",
    # A session may take TIMESTAMP for one without a zone.
    _TIMESTAMP: "TIMESTAMP_LTZ",
}


def ddl(schema: pa.Schema = SCHEMA) -> str:
    """Return the schema as Spark's DDL text; this needs no Spark."""
    return ", ".join(f"{field.name} {_ddl_type(field.type)}" for field in schema)


def _ddl_type(data_type: pa.DataType) -> str:
    if pa.types.is_list(data_type):
        return f"ARRAY<{_ddl_type(data_type.value_type)}>"
    if pa.types.is_struct(data_type):
        fields = (data_type.field(i) for i in range(data_type.num_fields))
        return f"STRUCT<{', '.join(f'{f.name}: {_ddl_type(f.type)}' for f in fields)}>"
    return _DDL[data_type]
