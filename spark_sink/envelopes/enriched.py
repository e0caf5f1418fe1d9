"""The envelope enriched of CockroachDB's changefeeds: the row, the operation, and their source.

Names and types are those of its own source (encoder_json.go, enriched_source_provider.go). A field
that Spanner has nothing for, such as a node's name, is empty, and origin is spanner.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas, record_schema
from slackwater.spark_sink.envelopes.changefeed import (
    ENRICHED,
    SCHEMA,
    SOURCE,
    SOURCE_FIELDS,
    decimal_timestamp,
)
from slackwater.spark_sink.envelopes.connect_schema import with_schema
from slackwater.spark_sink.envelopes.enriched_schema import enriched_schemas
from slackwater.spark_sink.envelopes.envelope import Message, MessageBody, ModEnvelope
from slackwater.spark_sink.envelopes.event import OPS, Event, Row
from slackwater.timestamp import us_to_ns

_ORIGIN: Final = "spanner"


class Enriched(ModEnvelope):
    """The row after the change in "after", with op and ts_ns, the time of processing."""

    name = ENRICHED
    has_key_order = True
    has_changefeed_options = True
    shows_rows_after = True

    @cached_property
    def timestamp_names(self) -> list[str]:
        """Return none: the commit timestamp is in source; see Envelope."""
        return []

    def messages(self, record: Row) -> Iterator[Message]:
        """Yield the messages in JSON, with their schemas if the options say so; see Envelope."""
        if SCHEMA not in self.options.enriched_properties:
            return super().messages(record)
        return (self._with_schemas(event).as_json() for event in self.json_events(record))

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        options = self.options
        value = {
            "after": event.after,
            "op": OPS[event.record["mod_type"]],
            "ts_ns": time.time_ns(),
            **self.changefeed_fields(event),
        }
        if options.key_in_value:
            value["key"] = event.keys
        if options.diff:
            value["before"] = event.whole_before
        if SOURCE in options.enriched_properties:
            value["source"] = self._source(event)
        return MessageBody(event.table, event.keys, value)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the fields that body() fills."""
        fields: dict[str, Schema] = {"after": table.row}
        if self.options.diff:
            fields["before"] = "Value"
        if SOURCE in self.options.enriched_properties:
            fields["source"] = record_schema("Source", SOURCE_FIELDS)
        return {**fields, "op": "string", "ts_ns": "long"}

    def _with_schemas(self, event: Event) -> MessageBody:
        body = self.body(event)
        hidden = self.options.headers_json_column_name
        columns = [c for c in event.record["column_types"] if c["name"] != hidden]
        schemas = enriched_schemas(event.table, columns, event.keys, body.value)
        return replace(
            body,
            key=with_schema(schemas.key_json, body.key),
            value=with_schema(schemas.value_json, body.value),
        )

    def _source(self, event: Event) -> dict[str, Any]:
        options, origin = self.options, self.options.origin
        schema, _, table = event.table.rpartition(".")
        commit_ns = us_to_ns(event.commit_us)
        source: dict[str, Any] = {
            "changefeed_sink": options.sink,
            "cluster_id": f"projects/{origin.project}/instances/{origin.instance}",
            "cluster_name": origin.instance,
            "database_name": origin.database,
            "job_id": origin.pipeline,
            "origin": _ORIGIN,
            "primary_keys": self.key_names(event.record),
            "schema_name": schema,
            "table_name": table,
            **dict.fromkeys(("db_version", "node_id", "node_name", "source_node_locality"), ""),
        }
        if options.mvcc_timestamp:
            source["mvcc_timestamp"] = decimal_timestamp(commit_ns)
        if options.updated:
            source |= {"ts_hlc": decimal_timestamp(commit_ns), "ts_ns": commit_ns}
        return source
