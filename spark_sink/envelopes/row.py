"""The envelope row of CockroachDB's changefeeds: a value is the row itself."""

from collections.abc import Mapping

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas
from slackwater.spark_sink.envelopes.changefeed import METADATA_KEY
from slackwater.spark_sink.envelopes.envelope import MessageBody, ModEnvelope
from slackwater.spark_sink.envelopes.event import Event


class Row(ModEnvelope):
    """The row after the change alone; no value if it was deleted."""

    name = "row"
    has_key_order = True
    has_changefeed_options = True
    shows_rows_after = True
    metadata_key = METADATA_KEY

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        value = event.after
        if value is None and self.options.is_value_alone:
            value = {}
        if value is not None and (fields := self.changefeed_fields(event)):
            value = {**value, METADATA_KEY: fields}
        # Without a value a compacted topic forgets the key.
        return MessageBody(event.table, self.primary_key(event), value, is_key_list=True)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the row's columns."""
        return table.columns
