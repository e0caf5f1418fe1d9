"""CockroachDB's messages in the envelope enriched and ours of the same change read the same.

The parser is written for the field reference in the documentation of CockroachDB's changefeeds and
for the messages in their own tests, and refuses what those do not have.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from slackwater.spark_sink.avro.schemas import TableSchema, key_schema, value_schema
from slackwater.spark_sink.avro.wire_format import RegistryEncoder, SchemaIds, for_avro
from slackwater.spark_sink.envelopes.enriched import enriched_schemas
from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions, Message, dumps
from slackwater.spark_sink.envelopes.registry import envelopes
from tests.support.row_changes import (
    BIKE,
    COMMITTED_MS,
    ORIGIN,
    VEHICLE_KEY,
    messages_of,
    record,
    vehicle,
)
from tests.unit.spark_sink.test_avro import read
from tests.unit.spark_sink.test_debezium_consumers import read_connect

FOO_TYPES = {"a": "INT64", "b": "STRING"}
DOG, CAT = {"a": 0, "b": "dog"}, {"a": 0, "b": "cat"}
# The operation, and the row before and after.
CHANGES: Mapping[str, tuple[str, Any, Any]] = {
    "insert": ("c", None, DOG),
    "update": ("u", DOG, CAT),
    "delete": ("d", CAT, None),
}
SOURCE = {
    "changefeed_sink": "kafka",
    "cluster_id": "585e6512-ea54-490a-8f1d-50c8d182a2e6",
    "cluster_name": "",
    "database_name": "test",
    "db_version": "v25.2.0-beta.2",
    "job_id": "1072079179268751361",
    "node_id": "1",
    "node_name": "localhost",
    "origin": "cockroachdb",
    "primary_keys": ["a"],
    "schema_name": "public",
    "source_node_locality": "",
    "table_name": "foo",
}
MVCC_TIMESTAMP = {"mvcc_timestamp": "1747243394200039000.0000000000"}
UPDATED = {"ts_hlc": "1747243394200039000.0000000000", "ts_ns": 1747243394200039000}
OF_TIMES = {**MVCC_TIMESTAMP, **UPDATED}
TYPES = {str: "string", int: "int64"}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "nothing": {},
    "diff": {"diff": True},
    "key_in_value": {"key_in_value": True},
    "source": {"enriched_properties": ("source",)},
    "source with mvcc_timestamp": {"enriched_properties": ("source",), "mvcc_timestamp": True},
    "source with updated": {"enriched_properties": ("source",), "updated": True},
    "schema": {"enriched_properties": ("schema",)},
    "schema with diff": {"enriched_properties": ("schema",), "diff": True},
    "everything": {
        "enriched_properties": ("source", "schema"),
        **dict.fromkeys(("diff", "key_in_value", "updated", "mvcc_timestamp"), True),
    },
}


def field(column: str, kind: str, *, optional: bool, **more: Any) -> dict[str, Any]:
    return {"field": column, "type": kind, "optional": optional, **more}


def documented_schema(names: Sequence[str]) -> dict[str, Any]:
    """The schema of a value that has these fields."""
    row = [field("a", "int64", optional=False), field("b", "string", optional=True)]
    source = [
        field(name, TYPES[type(value)], optional=name in OF_TIMES)
        for name, value in {**SOURCE, **OF_TIMES}.items()
        if name != "primary_keys"
    ]
    items = {"type": "string", "optional": False}
    source.append(field("primary_keys", "array", optional=False, items=items))
    parts = {
        "before": field("before", "struct", optional=True, name="foo.before.value", fields=row),
        "after": field("after", "struct", optional=False, name="foo.after.value", fields=row),
        "source": field(
            "source", "struct", optional=True, name="cockroachdb.source", fields=source
        ),
        "key": field("key", "struct", optional=False, name="foo.key", fields=row[:1]),
        "ts_ns": field("ts_ns", "int64", optional=False),
        "op": field("op", "string", optional=False),
    }
    fields = [part for name, part in parts.items() if name in names]
    envelope = {"name": "cockroachdb.envelope", "type": "struct", "optional": False}
    return {**envelope, "fields": fields}


def documented(kind: str, options: Mapping[str, Any]) -> Message:
    op, before, after = CHANGES[kind]
    properties = options.get("enriched_properties", ())
    key: Any = {"a": 0}
    value: Any = {"after": after, "op": op, "ts_ns": 1747243394886231000}
    if options.get("diff"):
        value["before"] = before
    if options.get("key_in_value"):
        value["key"] = key
    if "source" in properties:
        mvcc_timestamp = MVCC_TIMESTAMP if options.get("mvcc_timestamp") else {}
        value["source"] = SOURCE | mvcc_timestamp | (UPDATED if options.get("updated") else {})
    if "schema" in properties:
        fields = [field("a", "int64", optional=False)]
        of_key = {"name": "foo.key", "type": "struct", "optional": False, "fields": fields}
        key = {"schema": of_key, "payload": key}
        value = {"schema": documented_schema(list(value)), "payload": value}
    return Message("foo", json.dumps(key), json.dumps(value))


def ours(kind: str, options: Mapping[str, Any]) -> Message:
    _, before, after = CHANGES[kind]
    change = record(
        "foo", FOO_TYPES, ["a"], before, after, value_capture_type="NEW_ROW_AND_OLD_VALUES"
    )
    (message,) = messages_of("enriched", change, sink="kafka", **options)
    return message


@dataclass(frozen=True)
class EnrichedMessage:
    """What a consumer takes from a message.

    Attributes:
        key: the key's columns.
        op: c, u or d.
        rows: the row after the change, with diff before it, with key_in_value the key again.
        source: the type of each of its fields; None without it.
        schemas: of the key and of the value; None without them.
    """

    key: Mapping[str, Any]
    op: str
    rows: Mapping[str, Any]
    source: Mapping[str, type] | None
    schemas: tuple[Any, Any] | None


def read_enriched(message: Message, *, has_schemas: bool) -> EnrichedMessage:
    key, value = json.loads(message.key or ""), json.loads(message.value or "")
    schemas = None
    if has_schemas:
        assert key.keys() == value.keys() == {"schema", "payload"}
        schemas = in_order(key["schema"]), in_order(value["schema"])
        key, value = key["payload"], value["payload"]
    assert isinstance(key, dict)
    assert value["op"] in ("c", "u", "d")
    assert type(value.pop("ts_ns")) is int
    source = value.pop("source", None)
    if source is not None:
        source = {name: type(field) for name, field in source.items()}
        known = {name: type(field) for name, field in {**SOURCE, **OF_TIMES}.items()}
        assert source.items() <= known.items()
        assert source.keys() >= SOURCE.keys()
    op = value.pop("op")
    assert value.keys() <= {"after", "before", "key"}
    return EnrichedMessage(key, op, value, source, schemas)


def in_order(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with its fields by name: their order is not the same in all messages."""
    fields = {each["field"]: in_order(each) for each in schema.get("fields", ())}
    # What it says of a deleted row is wrong: there "after" is null.
    more = {"optional": True} if schema.get("field") == "after" else {}
    return {**schema, "fields": fields, **more}


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("asked", OPTIONS)
def test_cockroachdbs_enriched_messages_read_as_ours_of_the_same_change(
    asked: str, kind: str
) -> None:
    options = OPTIONS[asked]
    has_schemas = "schema" in options.get("enriched_properties", ())
    message = read_enriched(ours(kind, options), has_schemas=has_schemas)
    assert message == read_enriched(documented(kind, options), has_schemas=has_schemas)


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_read_by_its_schema_also_where_it_is_null(kind: str) -> None:
    message = ours(kind, {**OPTIONS["everything"], "topic": "{table}"})
    assert read_connect(message.key or "") == {"a": 0}
    assert read_connect(message.value or "") == json.loads(message.value or "")["payload"]


def test_a_key_may_be_null_in_its_schema_if_it_is() -> None:
    (message,) = messages_of(
        "enriched",
        record("T", {"id": "STRING"}, ["id"], None, {"id": None}),
        enriched_properties=("schema",),
    )
    assert read_connect(message.key or "") == {"id": None}


def test_the_source_names_the_table_its_key_and_the_time_of_the_commit() -> None:
    options: dict[str, Any] = {
        "enriched_properties": ("source",),
        "updated": True,
        "mvcc_timestamp": True,
    }
    change = vehicle(BIKE) | {"table_name": "fleet.vehicles"}
    shapes = {"fleet.vehicles": VEHICLE_KEY["vehicles"]}
    (message,) = messages_of("enriched", change, sink="kafka", shapes=shapes, **options)
    committed_ns = COMMITTED_MS * 1_000_000
    assert json.loads(message.value or "")["source"] == {
        "changefeed_sink": "kafka",
        "cluster_id": "projects/project/instances/instance",
        "cluster_name": "instance",
        "database_name": "database",
        "db_version": "",
        "job_id": "spanner_connector",
        "mvcc_timestamp": f"{committed_ns}.0000000000",
        "node_id": "",
        "node_name": "",
        "origin": "spanner",
        "primary_keys": ["city", "id"],
        "schema_name": "fleet",
        "source_node_locality": "",
        "table_name": "vehicles",
        "ts_hlc": f"{committed_ns}.0000000000",
        "ts_ns": committed_ns,
    }


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ('{"code":"BOOL"}', {"type": "boolean"}),
        ('{"code":"INT64"}', {"type": "int64"}),
        ('{"code":"INT64","type_annotation":"PG_OID"}', {"type": "int64"}),
        ('{"code":"FLOAT32"}', {"type": "float64"}),
        ('{"code":"FLOAT64"}', {"type": "float64"}),
        ('{"code":"STRING"}', {"type": "string"}),
        ('{"code":"UUID"}', {"type": "string"}),
        ('{"code":"INTERVAL"}', {"type": "string"}),
        ('{"code":"BYTES"}', {"type": "bytes"}),
        ('{"code":"DATE"}', {"type": "string", "name": "date"}),
        ('{"code":"TIMESTAMP"}', {"type": "string", "name": "timestamp"}),
        (
            '{"code":"NUMERIC"}',
            {
                "type": "float64",
                "name": "decimal",
                "parameters": {"precision": "38", "scale": "9"},
            },
        ),
        (
            '{"code":"NUMERIC","type_annotation":"PG_NUMERIC"}',
            {"type": "float64", "name": "decimal", "parameters": {"precision": "0", "scale": "0"}},
        ),
        ('{"code":"JSON"}', {"type": "json"}),
        ('{"code":"JSON","type_annotation":"PG_JSONB"}', {"type": "json"}),
        (
            '{"code":"ARRAY","array_element_type":{"code":"DATE"}}',
            {"type": "array", "items": {"type": "string", "name": "date", "optional": True}},
        ),
        ("no JSON", {"type": "string"}),
    ],
)
def test_a_column_has_the_type_that_cockroachdb_says_of_such_values(
    kind: str, expected: Mapping[str, Any]
) -> None:
    columns = [{"name": "x", "type": kind}]
    schema = json.loads(dumps(enriched_schemas("T", columns, {}, ["after"]).value))
    assert schema["fields"][0]["fields"] == [{"field": "x", "optional": True, **expected}]


def avro(kind: str, **options: Any) -> tuple[Any, Any]:
    _, before, after = CHANGES[kind]
    row = record(
        "foo", FOO_TYPES, ["a"], before, after, value_capture_type="NEW_ROW_AND_OLD_VALUES"
    )
    envelope = for_avro(envelopes()["enriched"](EnvelopeOptions(ORIGIN, **options)))
    table = TableSchema.of("foo", "foo", row["column_types"])
    encoder = RegistryEncoder(envelope, {table: SchemaIds(7, 7)}, by_table=False)
    ((key, value),) = encoder.messages(row, "foo")
    return read(key_schema(table, "foo"), key), read(value_schema(table, "foo", envelope), value)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("has_diff", [False, True])
def test_in_avro_it_has_the_same_fields(kind: str, has_diff: bool) -> None:
    op, before, after = CHANGES[kind]
    key, value = avro(kind, diff=has_diff)
    assert key == {"a": 0}
    assert (value.pop("op"), value.pop("after"), value.pop("resolved")) == (op, after, None)
    assert type(value.pop("ts_ns")) is int
    assert value == ({"before": before} if has_diff else {})
