"""The common parts of the envelopes of CockroachDB's changefeeds: wrapped, row, key_only, enriched.

Timestamps are nanoseconds since the Unix epoch, and behind the point a logical counter of ten
digits, which is always 0 here. In the envelopes row and key_only, everything that is not a column
stands under __crdb__, the name that their consumers know.
"""

import json
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

METADATA_KEY: Final = "__crdb__"
ENRICHED: Final = "enriched"
# What this envelope adds on request.
SOURCE: Final = "source"
SCHEMA: Final = "schema"
EnrichedProperty = Literal["source", "schema"]
# The fields of source, in Avro.
SOURCE_FIELDS: Final[Mapping[str, Any]] = {
    "changefeed_sink": "string",
    "cluster_id": "string",
    "cluster_name": "string",
    "database_name": "string",
    "db_version": "string",
    "job_id": "string",
    "mvcc_timestamp": "string",
    "node_id": "string",
    "node_name": "string",
    "origin": "string",
    "primary_keys": {"type": "array", "items": "string"},
    "schema_name": "string",
    "source_node_locality": "string",
    "table_name": "string",
    "ts_hlc": "string",
    "ts_ns": "long",
}


def decimal_timestamp(timestamp_ns: int) -> str:
    """Format a timestamp as CockroachDB writes it, and takes it as a cursor."""
    return f"{timestamp_ns}.0000000000"


def headers_of(mod: Mapping[str, Any], column: str) -> dict[str, str]:
    """Return the headers that the members of a JSON column are.

    A member that is null is none, and one that is not a text is its JSON, a number with all its
    digits. A column that has no object has no headers. Of a deleted row the old value counts, if
    the change stream captures it.

    Args:
        mod: of the output's contract.
        column: the column's name.
    """
    for part in ("new_values", "old_values"):
        values = orjson.loads(mod[part] or "{}")
        if column in values:
            text = values[column]
            spelled = orjson.Fragment
            # jsonb has numbers beyond those of a double, which orjson refuses.
            members = json.loads(text, parse_int=spelled, parse_float=spelled) if text else None
            return {
                name: value if isinstance(value, str) else orjson.dumps(value).decode()
                for name, value in (members.items() if isinstance(members, dict) else ())
                if value is not None
            }
    return {}
