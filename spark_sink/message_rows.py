"""Makes messages of an epoch's records with Spark: rows of an envelope's table, key and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.timestamp import us_to_datetime

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, Row

# The columns that order messages as the database changed.
ORDER: Final = ("commit_timestamp", "server_transaction_id", "record_sequence", "number")
_TIMESTAMPS: Final = ("commit_timestamp", "low_watermark")
# A number that rows of the same key have in common, whatever the form of their messages.
ROW_HASH: Final = "row_hash"
# From a record, its timestamps as datetime, to table_name, key and value of each message.
Wrap = Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]


def messages(changes: DataFrame, envelope: Envelope, *, has_row_hash: bool = False) -> DataFrame:
    """Return a row for each message: table_name, key, value, low_watermark, the columns of ORDER.

    Args:
        changes: rows of the output's contract.
        envelope: of the messages.
        has_row_hash: the column ROW_HASH is added.
    """

    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(m.table, m.key, m.value) for m in envelope.messages(record)]

    return rows_of_messages(changes, wrap, "string", has_row_hash=has_row_hash)


def rows_of_messages(
    changes: DataFrame, wrap: Wrap, kind: str, *, has_row_hash: bool = False
) -> DataFrame:
    """Return such rows for any way to write keys and values.

    Args:
        changes: rows of the output's contract, and other columns that wrap needs.
        wrap: makes the messages of a record.
        kind: Spark's type of keys and values.
        has_row_hash: the column ROW_HASH is added.
    """
    from pyspark.sql import functions as F

    # As numbers, because Python's workers would read them in the machine's own time zone.
    columns = [
        F.unix_micros(name).alias(name) if name in _TIMESTAMPS else F.col(name)
        for name in changes.columns
    ]
    row_hash = f", {ROW_HASH} long" if has_row_hash else ""
    schema = f"array<struct<table_name string, key {kind}, value {kind}{row_hash}>>"
    wrap_all = with_row_hashes(wrap) if has_row_hash else wrap
    wrapped = F.udf(_of_rows(wrap_all), schema, useArrow=False)
    ordering = [*ORDER[:3], "low_watermark"]
    wrapped_rows = changes.select(*ordering, wrapped(F.struct(*columns)).alias("messages"))
    return wrapped_rows.select(
        *ordering, F.posexplode("messages").alias("number", "message")
    ).select("message.*", "number", *ordering)


def _of_rows(wrap: Wrap) -> Callable[[Row], list[tuple[Any, ...]]]:
    def of_row(row: Row) -> list[tuple[Any, ...]]:
        record: Mapping[str, Any] = row.asDict(recursive=True)
        timestamps = {name: us_to_datetime(record[name]) for name in _TIMESTAMPS}
        return wrap({**record, **timestamps})

    return of_row


def with_row_hashes(wrap: Wrap) -> Wrap:
    """Return a function that adds a hash of the table and of the key as Spanner sent it.

    A message's own key would have another hash with another envelope, format or schema.
    """

    def wrap_all(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        rows, mods = wrap(record), record["mods"]
        # Each mod has as many messages as the others, or they share a single one.
        hashes = [crc32(f"{record['table_name']} {mod['keys']}".encode()) for mod in mods]
        return [
            (*row, hashes[number * len(hashes) // len(rows)]) for number, row in enumerate(rows)
        ]

    return wrap_all


def row_hash(table: Column, keys: Column) -> Column:
    """Return ROW_HASH as Spark computes it, of a table's name and a mod's keys."""
    from pyspark.sql import functions as F

    return F.crc32(F.concat_ws(" ", table, keys))
