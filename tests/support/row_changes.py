"""Data change records of one row's change, and their messages in an envelope."""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from slackwater.spark_sink.envelopes.envelope import EnvelopeOptions, Message, Origin
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.sql.table_shape import TableShape

# Those of the sample in the documentation of Debezium's Spanner connector.
COMMITTED_MS: Final = 1_670_955_531_785
WATERMARK_MS: Final = 1_670_955_471_635
ORIGIN: Final = Origin("spanner_connector", "project", "instance", "database", "change_stream")
VEHICLE_TYPES: Final = {"id": "STRING", "city": "STRING", "type": "STRING"}
# The primary key is (city, id), and the table's first column is id.
VEHICLE_KEY: Final = {"vehicles": TableShape(("city", "id"))}
BIKE: Final = {
    "id": "298cc7a0-de6b-4659-ae57-eaa2de9d99c3",
    "city": "washington dc",
    "type": "bike",
}


def of_ms(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)


def sent(row: Mapping[str, Any] | None, types: Mapping[str, str]) -> dict[str, Any]:
    """Return values as Spanner sends them: an INT64 as a text."""
    return {
        name: str(value) if types[name] == "INT64" and value is not None else value
        for name, value in (row or {}).items()
    }


def record(
    table: str,
    types: Mapping[str, str],
    keys: Sequence[str],
    before: Mapping[str, Any] | None,
    after: Mapping[str, Any] | None,
    **fields: Any,
) -> dict[str, Any]:
    """Return the data change record of one row's change; types and rows in the columns' order."""
    old, new = sent(before, types), sent(after, types)
    mod_type = "INSERT" if before is None else "DELETE" if after is None else "UPDATE"
    return {
        "commit_timestamp": of_ms(COMMITTED_MS),
        "server_transaction_id": "transaction_id",
        "record_sequence": "00000001",
        "is_last_record_in_transaction_in_partition": True,
        "table_name": table,
        "column_types": [
            {
                "name": name,
                "type": json.dumps({"code": code}),
                "is_primary_key": name in keys,
                "ordinal_position": place,
            }
            for place, (name, code) in enumerate(types.items(), 1)
        ],
        "mods": [
            {
                "keys": json.dumps({name: (new or old)[name] for name in keys}),
                "old_values": json.dumps({n: v for n, v in old.items() if n not in keys}),
                "new_values": json.dumps({n: v for n, v in new.items() if n not in keys}),
            }
        ],
        "mod_type": mod_type,
        "value_capture_type": "OLD_AND_NEW_VALUES",
        "number_of_records_in_transaction": 2,
        "number_of_partitions_in_transaction": 1,
        "transaction_tag": "",
        "is_system_transaction": False,
        "partition_token": "partition_token",
        "low_watermark": of_ms(WATERMARK_MS),
        **fields,
    }


def messages_of(
    envelope: str, row: Mapping[str, Any], origin: Origin = ORIGIN, **options: Any
) -> list[Message]:
    return list(envelopes()[envelope](EnvelopeOptions(origin, **options)).messages(row))


def vehicle(row: Mapping[str, Any]) -> dict[str, Any]:
    return record("vehicles", VEHICLE_TYPES, ["id", "city"], None, row)
