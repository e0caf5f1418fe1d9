"""The envelope wrapped of CockroachDB's changefeeds: the row after the change, in "after"."""

from collections.abc import Mapping

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas
from slackwater.spark_sink.envelopes.envelope import MessageBody, ModEnvelope
from slackwater.spark_sink.envelopes.event import Event


class Wrapped(ModEnvelope):
    """The row after the change in "after", null if it was deleted."""

    name = "wrapped"
    has_key_order = True
    has_changefeed_options = True
    shows_rows_after = True

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        value = {"after": event.after, **self.changefeed_fields(event)}
        if self.options.diff:
            value["before"] = event.whole_before
        return MessageBody(event.table, self.primary_key(event), value, is_key_list=True)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the field after; metadata is added for every envelope that has it."""
        fields: dict[str, Schema] = {"after": table.row}
        if self.options.diff:
            fields["before"] = "Value"
        return fields
