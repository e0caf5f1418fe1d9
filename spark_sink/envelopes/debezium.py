"""The envelope debezium: as the consumers of Debezium's Spanner connector expect it.

Names, types and order are those of the connector's own source (SpannerSourceInfoStructMaker,
ColumnTypeSchemaMapper) and of Debezium's envelope.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas, record_schema
from slackwater.spark_sink.envelopes.connect_schema import (
    event_schemas,
    resolved_schema,
    with_schema,
)
from slackwater.spark_sink.envelopes.envelope import ModEnvelope, ReadEvents
from slackwater.spark_sink.envelopes.event import Event, Row, events
from slackwater.spark_sink.envelopes.message import Message, MessageBody
from slackwater.spark_sink.envelopes.values import integer_converter
from slackwater.timestamp import datetime_to_us, ns_to_ms, ns_to_us, us_to_ms, us_to_ns

_OPS: Final = {"INSERT": "c", "UPDATE": "u", "DELETE": "d"}
# The fields of source in Avro.
_SOURCE: Final[Mapping[str, str]] = {
    "version": "string",
    "connector": "string",
    "name": "string",
    "ts_ms": "long",
    "snapshot": "string",
    "db": "string",
    "sequence": "string",
    "ts_us": "long",
    "ts_ns": "long",
    "project_id": "string",
    "instance_id": "string",
    "database_id": "string",
    "change_stream_name": "string",
    "table": "string",
    "server_transaction_id": "string",
    "low_watermark": "long",
    "read_at_timestamp": "long",
    "number_records_in_transaction": "long",
    "transaction_tag": "string",
    "system_transaction": "boolean",
    "value_capture_type": "string",
    "partition_token": "string",
    "mod_number": "long",
    "is_last_record_in_transaction_in_partition": "boolean",
    "number_of_partitions_in_transaction": "long",
}
# On a stream with mutable key ranges a record_sequence has two hexadecimal numbers, as in
# 963d1af435fb3e79-00000000. Later versions of the connector split it there.
_PREFIX: Final = "record_sequence_prefix"
_WITH_PREFIX: Final[Mapping[str, str]] = {**_SOURCE, _PREFIX: "string"}
_BETWEEN: Final = "-"


def _sequence_fields(record_sequence: str | None) -> dict[str, str]:
    """Return the number of a record_sequence as text, and the part before it."""
    prefix, is_split, number = (record_sequence or "").rpartition(_BETWEEN)
    if is_split:
        return {"sequence": str(int(number, 16)), _PREFIX: prefix}
    # Spanner sends it with leading zeros.
    return {"sequence": str(int(number or 0))}


@cache
def _version() -> str:
    try:
        return version("slackwater")
    except PackageNotFoundError:
        return ""


class Debezium(ModEnvelope):
    """before, after, source, op and ts_ms; times are milliseconds since the Unix epoch."""

    name = "debezium"

    def bodies(self, record: Row, read_events: ReadEvents = events) -> Iterator[MessageBody]:
        """Yield a message for each mod, and after a delete a tombstone; see Envelope."""
        for event in read_events(record):
            yield self.body(event)
            if event.after is None and self.options.tombstones:
                yield MessageBody(event.table, event.keys, None)

    def messages(self, record: Row) -> Iterator[Message]:
        """Yield the messages in JSON, with their schemas if the options say so; see Envelope."""
        bodies = self.bodies(record, self.json_events)
        if self.options.schemas_enable:
            bodies = (self._with_schemas(body, record) for body in bodies)
        return (body.as_json() for body in bodies)

    def resolved(self, watermark_ns: int) -> MessageBody:
        """Return the message, with its schema if the options say so; see Envelope."""
        body = super().resolved(watermark_ns)
        if not self.options.schemas_enable:
            return body
        schema = resolved_schema(self.options.origin.pipeline)
        return replace(body, value=with_schema(schema, body.value))

    @staticmethod
    def json_events(record: Row) -> Iterator[Event]:
        """Read the events of a record: a NUMERIC and a JSON stay strings; see Envelope."""
        return events(record, integer_converter)

    def _with_schemas(self, body: MessageBody, record: Row) -> MessageBody:
        assert body.table is not None and body.key is not None  # noqa: S101, PT018 - a change's
        schemas = event_schemas(
            self.options.origin.pipeline,
            body.table,
            record["column_types"],
            body.key,
            _WITH_PREFIX if _BETWEEN in (record["record_sequence"] or "") else _SOURCE,
        )
        value = None if body.value is None else with_schema(schemas.value, body.value)
        return replace(body, key=with_schema(schemas.key, body.key), value=value)

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        record, origin = event.record, self.options.origin
        now_ns = time.time_ns()
        now_ms = ns_to_ms(now_ns)
        value = {
            "before": event.before,
            "after": event.after,
            "source": {
                "version": _version(),
                "connector": "spanner",
                "name": origin.pipeline,
                "ts_ms": us_to_ms(event.commit_us),
                "snapshot": "true" if event.is_backfill else "false",
                "db": origin.database,
                **_sequence_fields(record["record_sequence"]),
                "ts_us": event.commit_us,
                "ts_ns": us_to_ns(event.commit_us),
                "project_id": origin.project,
                "instance_id": origin.instance,
                "database_id": origin.database,
                "change_stream_name": origin.change_stream,
                "table": event.table,
                "server_transaction_id": record["server_transaction_id"],
                "low_watermark": us_to_ms(datetime_to_us(record["low_watermark"])),
                "read_at_timestamp": now_ms,
                "number_records_in_transaction": record["number_of_records_in_transaction"],
                "transaction_tag": record["transaction_tag"],
                "system_transaction": record["is_system_transaction"],
                "value_capture_type": record["value_capture_type"],
                "partition_token": record["partition_token"],
                "mod_number": event.mod_number,
                "is_last_record_in_transaction_in_partition": record[
                    "is_last_record_in_transaction_in_partition"
                ],
                "number_of_partitions_in_transaction": record[
                    "number_of_partitions_in_transaction"
                ],
            },
            "op": "r" if event.is_backfill else _OPS[record["mod_type"]],
            "ts_ms": now_ms,
            "ts_us": ns_to_us(now_ns),
            "ts_ns": now_ns,
        }
        return MessageBody(event.table, event.keys, value)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the fields that body() fills."""
        return {
            "before": table.row,
            "after": "Value",
            "source": record_schema("Source", _WITH_PREFIX),
            "op": "string",
            **dict.fromkeys(("ts_ms", "ts_us", "ts_ns"), "long"),
        }
