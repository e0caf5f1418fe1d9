"""The envelope flat: one row's change with all metadata, under Spanner's own names."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from slackwater.spark_sink.envelopes.avro_fields import (
    RECORD_METADATA,
    Schema,
    TableSchemas,
    string_fields,
)
from slackwater.spark_sink.envelopes.envelope import MessageBody, ModEnvelope
from slackwater.spark_sink.envelopes.event import Event


class Flat(ModEnvelope):
    """Key, before, after and the record's metadata."""

    name = "flat"

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        record = event.record
        value = {
            "table_name": event.table,
            "mod_type": record["mod_type"],
            "key": event.keys,
            "before": event.before,
            "after": event.after,
            "mod_number": event.mod_number,
            **{name: self._converted(record[name]) for name in RECORD_METADATA},
        }
        return MessageBody(event.table, event.keys, value)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the fields that body() fills."""
        return {
            **string_fields("table_name", "mod_type"),
            "key": table.key,
            "before": table.row,
            "after": "Value",
            "mod_number": "long",
            **RECORD_METADATA,
        }

    def _converted(self, item: Any) -> Any:
        return self.options.timestamp_format(item) if isinstance(item, datetime) else item
