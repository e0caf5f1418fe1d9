"""The envelope datastream: the generic and source metadata of Datastream's events."""

from __future__ import annotations

import hashlib
import uuid
from datetime import UTC, datetime
from typing import Final

from slackwater.spark_sink.envelopes.event import Event
from slackwater.spark_sink.envelopes.message import MessageBody, Origin, dumps
from slackwater.spark_sink.envelopes.values import TimestampFormat
from slackwater.timestamp import datetime_to_rfc3339

_NAMESPACE: Final = uuid.UUID("6f1d2c1e-5d8e-5a0f-9c57-0d6f3a4b7c21")
_CDC: Final = "spanner-cdc"
_BACKFILL: Final = "spanner-backfill"
_PRIMARY_KEY: Final = "is_primary_key"


def datastream(
    event: Event, *, origin: Origin, timestamp_format: TimestampFormat = datetime_to_rfc3339
) -> MessageBody:
    """The event; its payload is the row, as it was where it was deleted."""
    record = event.record
    table, columns = record["table_name"], record["column_types"]
    schema, _, name = table.rpartition(".")
    shape = dumps([[c["name"], c["type"], c[_PRIMARY_KEY]] for c in columns])
    place = (
        record["server_transaction_id"],
        record["record_sequence"],
        event.mod_number,
    )
    keys = record["mods"][event.mod_number]["keys"]
    identity = (table, keys, event.commit_us) if event.is_backfill else place
    value = {
        "stream_name": origin.stream_name,
        "read_method": _BACKFILL if event.is_backfill else _CDC,
        "object": table,
        "schema_key": hashlib.sha256(f"{table} {shape}".encode()).hexdigest()[:32],
        # The same on replay: whoever gets an event twice knows it by this.
        "uuid": str(uuid.uuid5(_NAMESPACE, dumps([origin.stream_name, *identity]))),
        "read_timestamp": timestamp_format(datetime.now(UTC)),
        "source_timestamp": timestamp_format(record["commit_timestamp"]),
        "sort_keys": [event.commit_us, *place],
        "source_metadata": {
            "database": origin.database,
            "schema": schema,
            "table": name,
            "primary_keys": [c["name"] for c in columns if c[_PRIMARY_KEY]],
            "is_deleted": event.after is None,
            "change_type": record["mod_type"],
            "tx_id": record["server_transaction_id"],
        },
        "payload": event.before if event.after is None else event.after,
    }
    return MessageBody(table, event.keys, value)
