"""What a consumer takes from a message in Kafka, in each envelope and format.

The change that a message is of, as far as its envelope says: its transaction and place there; or
its key, and its commit timestamp where the message has it.
"""

import io
import json
import struct
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import fastavro
from confluent_kafka import Message

from slackwater.testing.plain_client import Truth, TruthRecord
from slackwater.timestamp import datetime_to_ns, parse_rfc3339
from tests.support.protobuf_messages import protobuf_decoder

# The primary keys of the demo's tables.
KEYS: Final[Mapping[str, Sequence[str]]] = {
    "Customers": ("CustomerId",),
    "Orders": ("CustomerId", "OrderId"),
    "Payments": ("PaymentId",),
}
ENVELOPES: Final = (
    *("record", "flat", "wrapped", "row", "key_only", "enriched", "datastream", "debezium"),
)
# What is read below is not in every message without these settings; strict is Debezium's own form.
SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "wrapped": {"updated": True},
    "row": {"updated": True},
    "enriched": {"updated": True, "enriched_properties": "source"},
    "debezium": {"strict": True},
}
Decode = Callable[[bytes], Any]


@dataclass(frozen=True)
class Seen:
    """What a message says.

    Attributes:
        change: which change it is of, comparable with expected_changes(); None if it is resolved.
        committed_ns: the commit timestamp; None if the message does not have it.
        resolved_ns: of a resolved message; None for changes.
    """

    change: Hashable | None
    committed_ns: int | None
    resolved_ns: int | None = None


def avro_decoder(schemas: Mapping[int, Any]) -> Decode:
    """Return what decodes the wire format of schema registries.

    Args:
        schemas: those of the registry, by number.
    """

    def decode(data: bytes) -> Any:
        zero, number = struct.unpack(">bI", data[:5])
        assert zero == 0
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), schemas[number], None)

    return decode


def decoder(written_in: str, schemas: Mapping[int, Any]) -> Decode:
    """Return what decodes keys and values.

    Args:
        written_in: the format.
        schemas: those of the registry, by number.
    """
    if written_in == "json":
        return json.loads
    return avro_decoder(schemas) if written_in == "avro" else protobuf_decoder(schemas)


def read_message(message: Message, envelope: str, decode: Decode = json.loads) -> Seen:
    """Read a message of a topic that ends with its table's name."""
    key, data = message.key(), message.value()
    value = None if data is None else decode(data)
    apart = (value or {}) if envelope not in ("row", "key_only") else (value or {}).get("__crdb__")
    resolved = (apart or {}).get("resolved")
    if resolved is not None:
        assert key is None
        return Seen(None, None, int(resolved.partition(".")[0]))
    if envelope == "debezium" and value is not None and value["op"] == "m":
        return Seen(None, None, value["source"]["low_watermark"] * 1_000_000)
    table = str(message.topic()).rpartition(".")[2]
    columns: Any = [] if key is None else decode(key)
    if isinstance(columns, dict):
        # In Protobuf a zero is not there.
        columns = [columns[name] or 0 for name in KEYS[table]]
    if envelope in ("wrapped", "row", "key_only"):
        updated = (apart or {}).get("updated")
        committed_ns = None if updated is None else int(updated.partition(".")[0])
        return Seen((table, *columns, committed_ns), committed_ns)
    if envelope == "enriched" and value is not None:
        committed_ns = value["source"]["ts_ns"]
        return Seen((table, *columns, committed_ns), committed_ns)
    if value is None:
        assert envelope == "debezium"
        return Seen(("tombstone", table, *columns), None)
    return Seen(*_place(value, envelope))


def _place(value: Mapping[str, Any], envelope: str) -> tuple[Hashable, int]:
    match envelope:
        case "datastream":
            _, transaction, sequence, number = value["sort_keys"]
            return (transaction, int(sequence), number), _ns(value["source_timestamp"])
        case "debezium":
            source = value["source"]
            number = source["mod_number"] or 0
            return (source["server_transaction_id"], int(source["sequence"]), number), source[
                "ts_ns"
            ]
    number = value["mod_number"] if envelope == "flat" else 0
    place = value["server_transaction_id"], int(value["record_sequence"]), number
    return place, _ns(value["commit_timestamp"])


def _ns(timestamp: str | datetime) -> int:
    if isinstance(timestamp, datetime):
        return datetime_to_ns(timestamp)
    return parse_rfc3339(timestamp)


def expected_changes(truth: Truth, envelope: str) -> Counter[Hashable]:
    """Return the changes of the truth as read_message() returns them, with the option updated."""
    return Counter(change for record in truth.records for change in _changes(record, envelope))


def _changes(record: TruthRecord, envelope: str) -> Iterator[Hashable]:
    if envelope == "record":
        yield (record.server_transaction_id, int(record.record_sequence), 0)
        return
    for number, (keys, _, _) in enumerate(record.mods):
        columns = [_key_value(json.loads(keys)[name]) for name in KEYS[record.table_name]]
        is_deleted = record.mod_type == "DELETE"
        if envelope in ("wrapped", "row", "key_only", "enriched"):
            has_time = envelope in ("wrapped", "enriched") or (envelope == "row" and not is_deleted)
            committed_ns = parse_rfc3339(record.commit_timestamp) if has_time else None
            yield (record.table_name, *columns, committed_ns)
            continue
        yield (record.server_transaction_id, int(record.record_sequence), number)
        if envelope == "debezium" and is_deleted:
            yield ("tombstone", record.table_name, *columns)


def _key_value(value: str) -> int | str:
    """Return an INT64 as a number; a payment's id is a UUID."""
    return int(value) if value.lstrip("-").isdigit() else value
