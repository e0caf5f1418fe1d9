"""The envelopes record and flat: Spanner's own names."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from slackwater.spark_sink.envelopes.event import Event, Row
from slackwater.spark_sink.envelopes.message import MessageBody
from slackwater.spark_sink.envelopes.values import TimestampFormat
from slackwater.timestamp import datetime_to_rfc3339

# What a record says of all its mods.
OF_THE_RECORD: Final = (
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


def record(row: Row, *, timestamp_format: TimestampFormat = datetime_to_rfc3339) -> MessageBody:
    """The data change record as it is, under the names of the output's contract."""
    value = {name: _plain(row[name], timestamp_format) for name in row}
    return MessageBody(row["table_name"], None, value)


def flat(event: Event, *, timestamp_format: TimestampFormat = datetime_to_rfc3339) -> MessageBody:
    """One message a mod: key, before, after and the record's metadata."""
    row = event.record
    value = {
        "table_name": row["table_name"],
        "mod_type": row["mod_type"],
        "key": event.keys,
        "before": event.before,
        "after": event.after,
        "mod_number": event.mod_number,
        **{name: _plain(row[name], timestamp_format) for name in OF_THE_RECORD},
    }
    return MessageBody(row["table_name"], event.keys, value)


def _plain(value: Any, timestamp_format: TimestampFormat) -> Any:
    return timestamp_format(value) if isinstance(value, datetime) else value
