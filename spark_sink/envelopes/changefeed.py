"""The common parts of the envelopes of CockroachDB's changefeeds: wrapped, row, key_only, enriched.

Timestamps are nanoseconds since the Unix epoch, and behind the point a logical counter of ten
digits, which is always 0 here. In the envelopes row and key_only, everything that is not a column
stands under __crdb__, the name that their consumers know.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

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
