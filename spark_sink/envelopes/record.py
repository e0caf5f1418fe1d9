"""The envelope record: the data change record as Spanner sent it, under Spanner's own names."""

from collections.abc import Iterator, Mapping
from datetime import datetime

from slackwater.spark_sink.envelopes.avro_fields import (
    RECORD_METADATA,
    Schema,
    TableSchemas,
    record_schema,
    string_fields,
)
from slackwater.spark_sink.envelopes.envelope import Envelope, MessageBody, ReadEvents
from slackwater.spark_sink.envelopes.event import Row, events


class Record(Envelope):
    """One message for each data change record, under the names of the output's contract."""

    name = "record"
    has_key = False
    needs_whole_rows = False

    def bodies(self, record: Row, read_events: ReadEvents = events) -> Iterator[MessageBody]:  # noqa: ARG002
        """Yield the record as it is; its mods stay JSON texts, as Spanner sent them."""
        convert = self.options.timestamp_format
        value = {
            name: convert(item) if isinstance(item, datetime) else item
            for name, item in record.items()
        }
        yield MessageBody(record["table_name"], None, value)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:  # noqa: ARG002
        """Return the fields of a data change record, the same for all tables."""
        column = {
            **string_fields("name", "type"),
            "is_primary_key": "boolean",
            "ordinal_position": "long",
        }
        mod = string_fields("keys", "new_values", "old_values")
        return {
            **string_fields("table_name", "mod_type"),
            "column_types": {"type": "array", "items": record_schema("ColumnType", column)},
            "mods": {"type": "array", "items": record_schema("Mod", mod)},
            **RECORD_METADATA,
        }
