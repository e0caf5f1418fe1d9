"""A range of a table's keys as a sink compares it, and its ends in the store's form."""

import json
from collections.abc import Sequence
from typing import Any

from slackwater.reader.database.key_range_read import KeyRangeRows
from slackwater.reader.database.watched_tables import Table
from slackwater.spark_sink.sink import Chunk
from slackwater.spark_sink.sql.columns import columns_from_schema
from slackwater.timestamp import ns_to_datetime


def chunk_of(table: Table, after: Sequence[Any] | None, rows: KeyRangeRows, at_ns: int) -> Chunk:
    """Return the rows of a range of keys as a chunk.

    Args:
        table: as it was when they were read.
        after: the key behind which the range begins; None for the table's beginning.
        rows: all rows of the range.
        at_ns: the low watermark at which they were read.
    """
    return Chunk(
        table.name,
        columns_from_schema(table.columns, table.key),
        table.key,
        table.descending,
        rows.rows,
        after,
        rows.last_key,
        ns_to_datetime(at_ns),
    )


def key_to_json(key: Sequence[object] | None) -> str | None:
    """Return the JSON of a key's values; None for the table's beginning or end."""
    return None if key is None else json.dumps(list(key))


def key_from_json(text: str | None) -> tuple[Any, ...] | None:
    """Return the key that key_to_json() has written."""
    return None if text is None else tuple(json.loads(text))
