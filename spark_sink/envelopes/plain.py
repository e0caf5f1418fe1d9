"""The envelopes record and flat: Spanner's own names."""

from __future__ import annotations

from typing import Any, Final

from spark_sink.envelopes.event import Event, Row
from spark_sink.envelopes.message import Message, dumps
from spark_sink.timestamps import rfc3339

# What a record says of all its mods.
_OF_THE_RECORD: Final = (
    "commit_timestamp",
    "server_transaction_id",
    "record_sequence",
    "is_last_record_in_transaction_in_partition",
    "value_capture_type",
    "number_of_records_in_transaction",
    "number_of_partitions_in_transaction",
    "transaction_tag",
    "is_system_transaction",
    "partition_token",
    "low_watermark",
)


def record(row: Row) -> Message:
    """The data change record as it is, under the names of the output's contract."""
    return Message(row["table_name"], None, dumps({name: _plain(row[name]) for name in row}))


def flat(event: Event) -> Message:
    """One message a mod: key, before, after and the record's metadata."""
    row = event.record
    value = {
        "table_name": row["table_name"],
        "mod_type": row["mod_type"],
        "key": event.keys,
        "before": event.before,
        "after": event.after,
        "mod_number": event.mod_number,
        **{name: _plain(row[name]) for name in _OF_THE_RECORD},
    }
    return Message(row["table_name"], dumps(event.keys), dumps(value))


def _plain(value: Any) -> Any:
    return rfc3339(value) if hasattr(value, "astimezone") else value
