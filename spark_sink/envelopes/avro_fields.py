"""Avro schemas as Python values: records, their fields, and the types that several envelopes use.

Every field may be null and is by default, so that any version of a schema reads what another
version has written: columns come and go.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

Schema = Any
TIMESTAMP_MICROS: Final[Mapping[str, str]] = {"type": "long", "logicalType": "timestamp-micros"}
# The metadata of a data change record that is the same for all its mods.
RECORD_METADATA: Final[Mapping[str, Schema]] = {
    "commit_timestamp": TIMESTAMP_MICROS,
    "server_transaction_id": "string",
    "record_sequence": "string",
    "is_last_record_in_transaction_in_partition": "boolean",
    "value_capture_type": "string",
    "number_of_records_in_transaction": "long",
    "number_of_partitions_in_transaction": "long",
    "transaction_tag": "string",
    "is_system_transaction": "boolean",
    "partition_token": "string",
    "low_watermark": TIMESTAMP_MICROS,
}


@dataclass(frozen=True, slots=True)
class TableSchemas:
    """The schemas of one table's rows, from which an envelope makes its own.

    Attributes:
        key: the record Key, of the primary key's columns.
        row: the record Value, of all columns. A schema defines it once and names it "Value" after
            that.
        columns: the fields of a row.
    """

    key: Schema
    row: Schema
    columns: Mapping[str, Schema]


def nullable(schema: Schema) -> Schema:
    """Return the union of a schema with null."""
    return ["null", schema]


def string_fields(*names: str) -> dict[str, Schema]:
    """Return fields that are all strings."""
    return dict.fromkeys(names, "string")


def record_schema(name: str, fields: Mapping[str, Schema], namespace: str | None = None) -> Schema:
    """Return the schema of a record.

    Args:
        name: the record's name.
        fields: the schema of each field, which need not allow null.
        namespace: of the record; None inside another record.
    """
    record: dict[str, Any] = {"type": "record", "name": name}
    if namespace is not None:
        record["namespace"] = namespace
    field_schemas = [{"name": n, "type": nullable(s), "default": None} for n, s in fields.items()]
    return {**record, "fields": field_schemas}
