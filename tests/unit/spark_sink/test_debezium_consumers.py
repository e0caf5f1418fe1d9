"""Debezium's documented events and ours of the same change read the same; Datastream's fields, too.

The parser is written for the sample in the documentation of Debezium's Spanner connector, and
refuses what that does not have.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pytest

from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions, Message
from slackwater.spark_sink.envelopes.registry import envelopes
from tests.support.row_changes import (
    BIKE,
    COMMITTED_MS,
    ORIGIN,
    VEHICLE_KEY,
    WATERMARK_MS,
    messages_of,
    record,
    vehicle,
)

ANNE = {"id": 1, "first_name": "Anne", "last_name": "Kretchmar", "email": "annek@noanswer.org"}
ANNE_MARIE = ANNE | {"first_name": "Anne Marie"}
USER_TYPES = {"id": "INT64", "first_name": "STRING", "last_name": "STRING", "email": "STRING"}

DOCUMENTED_SOURCE = {
    "version": "3.0.0.Final",
    "connector": "spanner",
    "name": "spanner_connector",
    "ts_ms": COMMITTED_MS,
    "ts_us": COMMITTED_MS * 1_000,
    "ts_ns": COMMITTED_MS * 1_000_000,
    "snapshot": "false",
    "db": "database",
    "sequence": "1",
    "project_id": "project",
    "instance_id": "instance",
    "database_id": "database",
    "change_stream_name": "change_stream",
    "table": "Users",
    "server_transaction_id": "transaction_id",
    "low_watermark": WATERMARK_MS,
    "read_at_timestamp": 1_670_955_531_791,
    "number_records_in_transaction": 2,
    "transaction_tag": "",
    "system_transaction": False,
    "value_capture_type": "OLD_AND_NEW_VALUES",
    "partition_token": "partition_token",
    "mod_number": 0,
    "is_last_record_in_transaction_in_partition": True,
    "number_of_partitions_in_transaction": 1,
}
# The operation, the row before and after, and when the connector processed it, in nanoseconds.
DOCUMENTED_EVENTS = {
    "insert": ("c", None, ANNE, 1_559_033_904_863_769_841),
    "update": ("u", ANNE, ANNE_MARIE, 1_465_584_025_523_614_723),
    "delete": ("d", ANNE_MARIE, None, 1_465_581_902_461_425_378),
}
# What a test can't have the same: whose version it is, and the clock.
OF_THE_PROCESS = ("version", "read_at_timestamp")


@dataclass(frozen=True)
class DebeziumEvent:
    """What a consumer takes from an event; op is None for a tombstone."""

    key: Mapping[str, Any]
    op: str | None
    before: Mapping[str, Any] | None = None
    after: Mapping[str, Any] | None = None
    source: Mapping[str, Any] | None = None


def read_debezium(message: Message, *, has_schemas: bool = False) -> DebeziumEvent:
    """Read an event as a typed consumer does: every field of the type that it has there."""
    read = read_connect if has_schemas else json.loads
    key = read(message.key or "")
    value = None if message.value is None else read(message.value)
    if value is None:
        return DebeziumEvent(key, None)
    assert value.pop("transaction", None) is None
    assert value.keys() == {"before", "after", "source", "op", "ts_ms", "ts_us", "ts_ns"}
    assert value["op"] in ("c", "u", "d")
    ns = value["ts_ns"]
    assert (value["ts_ms"], value["ts_us"]) == (ns // 1_000_000, ns // 1_000)
    source = value["source"]
    types = {name: type(field) for name, field in source.items()}
    assert types == {name: type(field) for name, field in DOCUMENTED_SOURCE.items()}
    source = {name: field for name, field in source.items() if name not in OF_THE_PROCESS}
    return DebeziumEvent(key, value["op"], value["before"], value["after"], source)


def documented_debezium(kind: str) -> Message:
    op, before, after, ns = DOCUMENTED_EVENTS[kind]
    times = {"ts_ms": ns // 1_000_000, "ts_us": ns // 1_000, "ts_ns": ns}
    rows = {"before": before, "after": after}
    value = {**rows, "source": DOCUMENTED_SOURCE, "op": op, **times}
    return Message("Users", json.dumps({"id": 1}), json.dumps(value))


def our_debezium(kind: str, **options: Any) -> list[Message]:
    _, before, after, _ = DOCUMENTED_EVENTS[kind]
    return messages_of("debezium", record("Users", USER_TYPES, ["id"], before, after), **options)


@pytest.mark.parametrize("kind", DOCUMENTED_EVENTS)
@pytest.mark.parametrize("has_schemas", [False, True])
def test_debeziums_documented_events_read_as_ours_of_the_same_change(
    kind: str, has_schemas: bool
) -> None:
    # A tombstone follows only a delete, and only if it is asked for.
    (message,) = our_debezium(kind, tombstones=kind != "delete", schemas_enable=has_schemas)
    assert read_debezium(message, has_schemas=has_schemas) == read_debezium(
        documented_debezium(kind)
    )


@pytest.mark.parametrize("has_schemas", [False, True])
def test_debeziums_tombstone_follows_a_delete_with_the_same_key(has_schemas: bool) -> None:
    delete, tombstone = our_debezium("delete", tombstones=True, schemas_enable=has_schemas)
    assert tombstone == Message("Users", delete.key, None)
    assert read_debezium(tombstone, has_schemas=has_schemas) == DebeziumEvent({"id": 1}, None)


def read_connect(text: str) -> Any:
    """Read a payload by its schema, as Kafka Connect's JsonConverter does with schemas.enable.

    It takes a message of these two fields only, and fails where a required value is missing.
    """
    message = json.loads(text)
    assert message.keys() == {"schema", "payload"}
    return _by_schema(message["schema"], message["payload"])


def _by_schema(schema: Mapping[str, Any], value: Any) -> Any:
    if value is None:
        assert schema["optional"], f"{schema} has no value"
        return None
    match schema["type"]:
        case "struct":
            names = [field["field"] for field in schema["fields"]]
            assert set(value) <= set(names), "a field that the schema does not have"
            return {
                field["field"]: _by_schema(field, value.get(field["field"]))
                for field in schema["fields"]
            }
        case "array":
            return [_by_schema(schema["items"], item) for item in value]
        case "bytes":
            return base64.b64decode(value, validate=True)
        case "float" | "double":
            # As Jackson writes and reads what JSON has no number for.
            return float(value)
    types = {"string": str, "boolean": bool, "int32": int, "int64": int}
    assert type(value) is types[schema["type"]]
    return value


def test_a_key_may_be_null_in_its_schema_if_it_is() -> None:
    (message,) = messages_of(
        "debezium",
        record("T", {"id": "STRING"}, ["id"], None, {"id": None}),
        schemas_enable=True,
    )
    assert read_connect(message.key or "") == {"id": None}


def test_a_resolved_message_is_read_by_connect_where_the_others_have_schemas() -> None:
    envelope = envelopes()["debezium"](EnvelopeOptions(ORIGIN, schemas_enable=True))
    message = envelope.resolved(1_670_955_531_785_000_000).as_json()
    expected = {"resolved": "1670955531785000000.0000000000"}
    assert read_connect(message.value or "") == expected


# The fields of its documentation in JSON. The source's are those of PostgreSQL, whose lsn orders
# events; here sort_keys do. Each source but PostgreSQL has database, too.
DATASTREAM_FIELDS = {
    "stream_name": str,
    "read_method": str,
    "object": str,
    "schema_key": str,
    "uuid": str,
    "read_timestamp": str,
    "source_timestamp": str,
    "sort_keys": list,
    "source_metadata": dict,
    "payload": dict,
}
DATASTREAM_SOURCE = {
    "database": str,
    "schema": str,
    "table": str,
    "primary_keys": list,
    "is_deleted": bool,
    "change_type": str,
    "tx_id": str,
}


@pytest.mark.parametrize("kind", DOCUMENTED_EVENTS)
def test_datastreams_events_have_its_documented_fields(kind: str) -> None:
    _, before, after, _ = DOCUMENTED_EVENTS[kind]
    change = record("sales.Users", USER_TYPES, ["id"], before, after)
    (message,) = messages_of("datastream", change)
    value = json.loads(message.value or "")
    assert {name: type(field) for name, field in value.items()} == DATASTREAM_FIELDS
    source = value["source_metadata"]
    assert {name: type(field) for name, field in source.items()} == DATASTREAM_SOURCE
    assert all(isinstance(key, str | int) for key in value["sort_keys"])
    assert (source["is_deleted"], source["change_type"]) == (kind == "delete", kind.upper())
    # The row as it is after the change, or as it was.
    assert value["payload"] == (after or before)
    for name in ("read_timestamp", "source_timestamp"):
        assert datetime.fromisoformat(value[name]).tzinfo is not None


def test_datastreams_primary_keys_have_the_keys_order() -> None:
    (message,) = messages_of("datastream", vehicle(BIKE), shapes=VEHICLE_KEY)
    source = json.loads(message.value or "")["source_metadata"]
    assert source["primary_keys"] == ["city", "id"]
