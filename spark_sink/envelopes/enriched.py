"""The envelope enriched of CockroachDB's changefeeds: the row, the operation, and their source.

Names and types are those of its own source (encoder_json.go, enriched_source_provider.go). A field
that Spanner has nothing for, such as a node's name, is empty, and origin is spanner.
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any, Final

from slackwater.column_types import element_type
from slackwater.spark_sink.envelopes.avro_fields import Schema, TableSchemas, record_schema
from slackwater.spark_sink.envelopes.changefeed import (
    ENRICHED,
    SCHEMA,
    SOURCE,
    SOURCE_FIELDS,
    decimal_timestamp,
)
from slackwater.spark_sink.envelopes.connect_schema import (
    BY_AVRO_TYPE,
    INT64,
    STRING,
    ConnectSchema,
    EventSchemas,
    array_schema,
    field_schema,
    schemas_of,
    struct_schema,
    with_schema,
)
from slackwater.spark_sink.envelopes.envelope import Message, MessageBody, ModEnvelope
from slackwater.spark_sink.envelopes.event import OPS, Event, Row
from slackwater.spark_sink.envelopes.values import Values
from slackwater.spark_sink.sql.types import spanner_type
from slackwater.timestamp import us_to_ns

_DECIMAL: Final[Mapping[str, Any]] = {"type": "float64", "name": "decimal"}
_BY_TYPE: Final[Mapping[str, Mapping[str, Any]]] = {
    "BOOL": {"type": "boolean"},
    "BYTES": {"type": "bytes"},
    "DATE": {"type": "string", "name": "date"},
    "FLOAT32": {"type": "float64"},
    "FLOAT64": {"type": "float64"},
    "INT64": INT64,
    "JSON": {"type": "json"},
    "NUMERIC": {**_DECIMAL, "parameters": {"precision": "38", "scale": "9"}},
    "PG_JSONB": {"type": "json"},
    # It has no limits, as a DECIMAL without them.
    "PG_NUMERIC": {**_DECIMAL, "parameters": {"precision": "0", "scale": "0"}},
    "PG_OID": INT64,
    "TIMESTAMP": {"type": "string", "name": "timestamp"},
}
_ON_REQUEST: Final = frozenset({"mvcc_timestamp", "ts_hlc", "ts_ns"})
_ORIGIN: Final = "spanner"


def enriched_schemas(
    table: str, column_types: Iterable[Mapping[str, Any]], keys: Values, fields: Iterable[str]
) -> EventSchemas:
    """Return the schemas of a change in the envelope enriched.

    Args:
        table: the table's full name.
        column_types: of the record.
        keys: the key's values. A change record does not say whether a column may be NULL: one of
            the key that is not NULL here is required.
        fields: those that the value has.
    """
    return _enriched_schemas(
        table,
        tuple((column["name"], spanner_type(column["type"])) for column in column_types),
        frozenset(name for name, value in keys.items() if value is not None),
        frozenset(keys),
        frozenset(fields),
    )


@lru_cache(maxsize=1_000)
def _enriched_schemas(
    table: str,
    columns: Sequence[tuple[str, str]],
    required: frozenset[str],
    key_names: frozenset[str],
    fields: frozenset[str],
) -> EventSchemas:
    of_columns = {
        name: field_schema(name, _column_schema(kind), optional=name not in required)
        for name, kind in columns
    }
    row = list(of_columns.values())
    in_key = [of_columns[name] for name in of_columns if name in key_names]
    key = struct_schema(in_key, f"{table}.key")
    parts = {
        "before": struct_schema(row, f"{table}.before.value", optional=True),
        # CockroachDB says that it is never null, also where it is: in a delete.
        "after": struct_schema(row, f"{table}.after.value", optional=True),
        "source": struct_schema(_source(), "cockroachdb.source", optional=True),
        "key": key,
        "topic": {**STRING, "optional": False},
        "ts_ns": {**INT64, "optional": False},
        "op": {**STRING, "optional": False},
    }
    value = [{**part, "field": name} for name, part in parts.items() if name in fields]
    return schemas_of(key, struct_schema(value, "cockroachdb.envelope"))


def _source() -> list[ConnectSchema]:
    texts = {"type": "array", "items": {**STRING, "optional": False}}
    return [
        field_schema(
            name,
            BY_AVRO_TYPE[kind] if isinstance(kind, str) else texts,
            optional=name in _ON_REQUEST,
        )
        for name, kind in SOURCE_FIELDS.items()
    ]


def _column_schema(kind: str) -> Mapping[str, Any]:
    element = element_type(kind)
    return array_schema(_column_schema(element)) if element else _BY_TYPE.get(kind, STRING)


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
