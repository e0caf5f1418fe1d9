"""The changes of a change stream: as they are read, and the columns that they have as rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

TIMESTAMP: Final = pa.timestamp("us", tz="UTC")
ENTRY: Final = pa.struct(
    [
        ("kind", pa.string()),
        ("family", pa.string()),
        ("qualifier", pa.binary()),
        ("timestamp_micros", pa.int64()),
        # Beyond the last timestamp that is deleted; null if there is none.
        ("end_timestamp_micros", pa.int64()),
        ("value", pa.binary()),
    ]
)
SCHEMA: Final = pa.schema(
    [
        ("commit_timestamp", TIMESTAMP),
        ("row_key", pa.binary()),
        ("row_key_text", pa.string()),
        ("type", pa.string()),
        ("source_cluster_id", pa.string()),
        ("tiebreaker", pa.int64()),
        ("entries", pa.list_(ENTRY)),
        ("estimated_low_watermark", TIMESTAMP),
        ("partition", pa.string()),
        ("low_watermark", TIMESTAMP),
    ]
)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes of one partition, all of them whole.

    Attributes:
        partition: its keys, as a text.
        messages: as Bigtable sent them.
        size_bytes: of the messages.
    """

    partition: str
    messages: Sequence[bytes]
    size_bytes: int
