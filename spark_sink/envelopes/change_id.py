"""The UUID of a change, the same on a replay, by which a consumer recognizes one again."""

import uuid
from collections.abc import Mapping
from typing import Any, Final

from slackwater.spark_sink.envelopes.envelope import dumps
from slackwater.timestamp import datetime_to_us

_NAMESPACE: Final = uuid.UUID("6f1d2c1e-5d8e-5a0f-9c57-0d6f3a4b7c21")


def change_id(stream_name: str, record: Mapping[str, Any], mod_number: int, part: int = 0) -> str:
    """Return the UUID of a change.

    Args:
        stream_name: the change stream's resource name.
        record: a row of the output's contract.
        mod_number: of the change among the record's mods.
        part: of its messages, if it has several.
    """
    place: tuple[Any, ...] = (
        record["server_transaction_id"],
        record["record_sequence"],
        mod_number,
    )
    if not record["server_transaction_id"]:
        # A row of an initial scan belongs to no transaction.
        keys = record["mods"][mod_number]["keys"]
        place = (record["table_name"], keys, datetime_to_us(record["commit_timestamp"]))
    identity = [stream_name, *place, *([part] if part else [])]
    return str(uuid.uuid5(_NAMESPACE, dumps(identity)))
