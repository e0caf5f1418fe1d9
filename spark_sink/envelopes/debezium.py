"""The envelope debezium: as the consumers of Debezium's Spanner connector expect it.

Names, types and order are those of the connector's own source (SpannerSourceInfoStructMaker,
ColumnTypeSchemaMapper, SpannerEventDispatcher) and of Debezium's envelope.
"""

import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas, record_schema
from slackwater.spark_sink.envelopes.change_id import change_id
from slackwater.spark_sink.envelopes.connect_schema import (
    EventSchemas,
    EventTable,
    event_schemas,
    heartbeat_schemas,
    resolved_schema,
    with_schema,
)
from slackwater.spark_sink.envelopes.envelope import Message, MessageBody, ModEnvelope, ReadEvents
from slackwater.spark_sink.envelopes.event import OPS, Event, Row, events
from slackwater.spark_sink.envelopes.values import connect_converter
from slackwater.spark_sink.sql.table_shape import TableShape
from slackwater.timestamp import datetime_to_us, ns_to_ms, ns_to_us, us_to_ms, us_to_ns

_TIMES: Final = ("ts_ms", "ts_us", "ts_ns")
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
# 963d1af435fb3e79-00000000, which the connector can't read.
_PREFIX: Final = "record_sequence_prefix"
_WITH_PREFIX: Final[Mapping[str, str]] = {**_SOURCE, _PREFIX: "string"}
_BETWEEN: Final = "-"
_UID: Final = "spannerDataChangeRecordUid"
_POLLED: Final = "pollAtTimestamp"
# Those of a data change record under their own names.
_OF_RECORD: Final = (
    *("transaction_tag", "value_capture_type", "partition_token"),
    *("is_last_record_in_transaction_in_partition", "number_of_partitions_in_transaction"),
)


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

    @property
    def needs_shapes(self) -> bool:
        """Whether messages show columns that a record lacks; see Envelope."""
        return self.options.strict

    @property
    def has_headers(self) -> bool:
        """Whether messages have the connector's headers; see Envelope."""
        return self.options.strict or super().has_headers

    def headers(self, record: Row | None, mod_number: int = 0) -> Mapping[str, str]:
        """Return the connector's headers; its random number of a change is the change's UUID."""
        if not self.options.strict:
            return super().headers(record, mod_number)
        now = str(ns_to_ms(time.time_ns()))
        if record is None:
            return {_UID: f"watermark-{uuid.uuid4()}", _POLLED: now}
        origin = self.options.origin
        context = {
            "connectorLogicalName": origin.pipeline,
            "taskId": "0",
            "connectorName": origin.pipeline,
            "runId": self.options.run_id,
        }
        return {
            _UID: change_id(origin.stream_name, record, mod_number),
            **{f"__debezium.context.{name}": value for name, value in context.items()},
            "emitAtTimestamp": now,
            _POLLED: now,
        }

    def heartbeat(self, token: str) -> MessageBody:
        """Return the connector's heartbeat of a partition.

        Args:
            token: the partition token.
        """
        key, value = {"partitionToken": token}, {"ts_ms": ns_to_ms(time.time_ns())}
        if not self.options.schemas_enable:
            return MessageBody(None, key, value)
        schemas = heartbeat_schemas()
        return MessageBody(
            None, with_schema(schemas.key_json, key), with_schema(schemas.value_json, value)
        )

    def bodies(self, record: Row, read_events: ReadEvents = events) -> Iterator[MessageBody]:
        """Yield a message for each mod, and after a delete a tombstone; see Envelope."""
        columns = self._columns(record) if self.options.strict else {}
        return self._bodies(read_events(record), columns)

    def messages(self, record: Row) -> Iterator[Message]:
        """Yield the messages in JSON, with their schemas if the options say so; see Envelope."""
        if not self.options.schemas_enable:
            return super().messages(record)
        columns = self._columns(record)
        bodies = self._bodies(self.json_events(record), columns)
        return (self._with_schemas(body, record, columns).as_json() for body in bodies)

    def resolved(self, watermark_ns: int, table: str | None = None) -> MessageBody:
        """Return the message, with its schema if the options say so; see Envelope."""
        if self.options.strict and table is not None:
            return self._watermark(watermark_ns, table)
        body = super().resolved(watermark_ns)
        if not self.options.schemas_enable:
            return body
        schema = resolved_schema(self.options.origin.pipeline)
        return replace(body, value=with_schema(schema, body.value))

    def json_events(self, record: Row) -> Iterator[Event]:
        """Read the events of a record: a NUMERIC and a JSON stay strings; see Envelope."""
        return events(record, connect_converter)

    def connect_schemas(
        self, table: str, column_types: Iterable[Mapping[str, Any]]
    ) -> EventSchemas | None:
        """Return the connector's schemas, with strict; see Envelope.

        Where the key's shape is unknown, its columns may be NULL.
        """
        if not self.options.strict:
            return None
        record_columns = list(column_types)
        columns = self._shape(table).with_columns_of(record_columns)
        key = [column["name"] for column in record_columns if column["is_primary_key"]]
        return self._schemas(table, columns, key or self._shape(table).key, key, _SOURCE)

    def body(self, event: Event) -> MessageBody:
        """Return the message of one mod."""
        record, now_ns = event.record, time.time_ns()
        value = {
            "before": event.before,
            "after": event.after,
            "source": self._source(
                event.table,
                event.commit_us,
                {
                    "snapshot": "true" if event.is_backfill else "false",
                    **_sequence_fields(record["record_sequence"]),
                    "server_transaction_id": record["server_transaction_id"],
                    "low_watermark": us_to_ms(datetime_to_us(record["low_watermark"])),
                    "read_at_timestamp": ns_to_ms(now_ns),
                    "number_records_in_transaction": record["number_of_records_in_transaction"],
                    "system_transaction": record["is_system_transaction"],
                    "mod_number": event.mod_number,
                    **{name: record[name] for name in _OF_RECORD},
                },
            ),
            "op": "r" if event.is_backfill else OPS[record["mod_type"]],
            **_times(now_ns),
            "transaction": None,
        }
        return MessageBody(event.table, event.keys, value)

    def avro_fields(self, table: TableSchemas) -> Mapping[str, Schema]:
        """Return the fields that body() fills."""
        return {
            "before": table.row,
            "after": "Value",
            "source": record_schema("Source", _WITH_PREFIX),
            "op": "string",
            **dict.fromkeys(_TIMES, "long"),
        }

    def _bodies(
        self, of_record: Iterator[Event], columns: Mapping[str, str]
    ) -> Iterator[MessageBody]:
        for event in of_record:
            yield self.body(_with_all(event, columns) if self.options.strict else event)
            if event.after is None and self.options.tombstones:
                yield MessageBody(event.table, event.keys, None)

    def _watermark(self, watermark_ns: int, table: str) -> MessageBody:
        """Return the message that the connector sends with its low watermark."""
        now_ns = time.time_ns()
        fields = {"snapshot": "false", "low_watermark": ns_to_ms(watermark_ns)}
        value = {
            "before": None,
            "after": None,
            "source": self._source(table, ns_to_us(now_ns), fields),
            "op": "m",
            # The connector sets no others here.
            **dict.fromkeys(_TIMES),
            "ts_ms": ns_to_ms(now_ns),
            "transaction": None,
        }
        if self.options.schemas_enable:
            shape = self._shape(table)
            schemas = self._schemas(table, shape.columns, shape.key, (), _SOURCE)
            value = with_schema(schemas.value_json, value)
        return MessageBody(None, None, value)

    def _source(self, table: str, at_us: int, fields: Mapping[str, Any]) -> dict[str, Any]:
        """Return the field source; what fields lacks is null."""
        origin = self.options.origin
        return {
            **dict.fromkeys(_SOURCE),
            "version": _version(),
            "connector": "spanner",
            "name": origin.pipeline,
            **_times(us_to_ns(at_us)),
            "db": origin.database,
            "project_id": origin.project,
            "instance_id": origin.instance,
            "database_id": origin.database,
            "change_stream_name": origin.change_stream,
            "table": table.rpartition(".")[2] if self.options.strict else table,
            **fields,
        }

    def _shape(self, table: str) -> TableShape:
        return self.options.shapes.get(table, TableShape())

    def _columns(self, record: Row) -> dict[str, str]:
        return self._shape(record["table_name"]).with_columns_of(record["column_types"])

    def _schemas(
        self,
        table: str,
        columns: Mapping[str, str],
        key: Collection[str],
        nullable: Collection[str],
        source: Mapping[str, str],
    ) -> EventSchemas:
        """Return a table's schemas.

        Args:
            table: the full name.
            columns: types by name.
            key: the columns of a record's key, which may be that of a former table.
            nullable: those of the key that may be NULL if the table's shape does not say it.
            source: the fields of source.
        """
        shape = self._shape(table)
        if set(shape.key) == set(key):
            nullable = shape.nullable
        return event_schemas(
            EventTable(
                self.options.origin.pipeline,
                table,
                tuple(columns.items()),
                frozenset(key),
                frozenset(key).difference(nullable),
                tuple(source.items()),
            )
        )

    def _with_schemas(
        self, body: MessageBody, record: Row, columns: Mapping[str, str]
    ) -> MessageBody:
        assert body.table is not None and body.key is not None  # noqa: S101, PT018 - a change's
        # A change record does not say whether a column of the key may be NULL.
        null = [name for name, value in body.key.items() if value is None]
        has_prefix = _BETWEEN in (record["record_sequence"] or "")
        source = _WITH_PREFIX if has_prefix else _SOURCE
        schemas = self._schemas(body.table, columns, body.key, null, source)
        value = None if body.value is None else with_schema(schemas.value_json, body.value)
        return replace(body, key=with_schema(schemas.key_json, body.key), value=value)


def _with_all(event: Event, columns: Iterable[str]) -> Event:
    """Return the event with all of the table's columns; one that was not captured is null."""
    return replace(
        event,
        before=event.before and {name: event.before.get(name) for name in columns},
        after=event.after and {name: event.after.get(name) for name in columns},
    )


def _times(timestamp_ns: int) -> dict[str, int]:
    times = (ns_to_ms(timestamp_ns), ns_to_us(timestamp_ns), timestamp_ns)
    return dict(zip(_TIMES, times, strict=True))
