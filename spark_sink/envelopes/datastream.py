"""The envelope datastream: the generic and source metadata of Datastream's events."""

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from slackwater.spark_sink.envelopes.avro_fields import (
    TIMESTAMP_MICROS,
    Schema,
    TableSchemas,
    record_schema,
    string_fields,
)
from slackwater.spark_sink.envelopes.change_id import change_id
from slackwater.spark_sink.envelopes.envelope import MessageBody, ModEnvelope, dumps
from slackwater.spark_sink.envelopes.event import Event

_CDC: Final = "spanner-cdc"
_BACKFILL: Final = "spanner-backfill"


class Datastream(ModEnvelope):
    """An event of Datastream's; its payload is the row, or the deleted row as it was."""

    name = "datastream"
    has_key_order = True
    shows_rows_after = True

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        record = event.record
        table, columns = event.table, record["column_types"]
        schema, _, name = table.rpartition(".")
        shape = dumps([[c["name"], c["type"], c["is_primary_key"]] for c in columns])
        place = (
            record["server_transaction_id"],
            record["record_sequence"],
            event.mod_number,
        )
        value = {
            "stream_name": self.options.origin.stream_name,
            "read_method": _BACKFILL if event.is_backfill else _CDC,
            "object": table,
            "schema_key": hashlib.sha256(f"{table} {shape}".encode()).hexdigest()[:32],
            "uuid": change_id(self.options.origin.stream_name, record, event.mod_number),
            "read_timestamp": self.options.timestamp_format(datetime.now(UTC)),
            "source_timestamp": self.options.timestamp_format(record["commit_timestamp"]),
            "sort_keys": [event.commit_us, *place],
            "source_metadata": {
                "database": self.options.origin.database,
                "schema": schema,
                "table": name,
                "primary_keys": self.key_names(record),
                "is_deleted": event.after is None,
                "change_type": record["mod_type"],
                "tx_id": record["server_transaction_id"],
            },
            "payload": event.before if event.after is None else event.after,
        }
        return MessageBody(table, event.keys, value)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the fields that body() fills."""
        source = record_schema(
            "SourceMetadata",
            {
                **string_fields("database", "schema", "table"),
                "primary_keys": {"type": "array", "items": "string"},
                "is_deleted": "boolean",
                **string_fields("change_type", "tx_id"),
            },
        )
        return {
            **string_fields("stream_name", "read_method", "object", "schema_key", "uuid"),
            "read_timestamp": TIMESTAMP_MICROS,
            "source_timestamp": TIMESTAMP_MICROS,
            "sort_keys": {"type": "array", "items": ["long", "string"]},
            "source_metadata": source,
            "payload": table.row,
        }
