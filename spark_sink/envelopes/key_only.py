"""The envelope key_only of CockroachDB's changefeeds: the key, and no value."""

from collections.abc import Mapping

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas
from slackwater.spark_sink.envelopes.changefeed import METADATA_KEY
from slackwater.spark_sink.envelopes.envelope import MessageBody, ModEnvelope
from slackwater.spark_sink.envelopes.event import Event


class KeyOnly(ModEnvelope):
    """The key, and no value; where a value stands alone, the key under __crdb__."""

    name = "key_only"
    has_key_order = True
    needs_whole_rows = False
    metadata_key = METADATA_KEY

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        is_alone = self.options.is_value_alone
        value = {METADATA_KEY: self.changefeed_fields(event)} if is_alone else None
        return MessageBody(event.table, self.primary_key(event), value, is_key_list=True)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema] | None:  # noqa: ARG002
        """Return None: its messages have no value; or no field beside the metadata."""
        return {} if self.options.is_value_alone else None
