"""Makes messages of an epoch's records with Spark: rows of an envelope's table, key and value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.envelopes.envelope import Envelope
from slackwater.timestamp import us_to_datetime

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

# The columns that order messages as the database changed.
ORDER: Final = ("commit_timestamp", "server_transaction_id", "record_sequence", "number")
_TIMESTAMPS: Final = ("commit_timestamp", "low_watermark")
# From a record, its timestamps as datetime, to table_name, key and value of each message.
Wrap = Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]


def messages(changes: DataFrame, envelope: Envelope) -> DataFrame:
    """Return a row for each message: table_name, key, value, low_watermark, the columns of ORDER.

    Args:
        changes: rows of the output's contract.
        envelope: of the messages.
    """

    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return [(m.table, m.key, m.value) for m in envelope.messages(record)]

    return rows_of_messages(changes, wrap, "string")


def rows_of_messages(changes: DataFrame, wrap: Wrap, kind: str) -> DataFrame:
    """Return such rows for any way to write keys and values.

    Args:
        changes: rows of the output's contract, and other columns that wrap needs.
        wrap: makes the messages of a record.
        kind: Spark's type of keys and values.
    """
    from pyspark.sql import functions as F

    # As numbers, because Python's workers would read them in the machine's own time zone.
    columns = [
        F.unix_micros(name).alias(name) if name in _TIMESTAMPS else F.col(name)
        for name in changes.columns
    ]
    schema = f"array<struct<table_name string, key {kind}, value {kind}>>"
    wrapped = F.udf(_of_rows(wrap), schema, useArrow=False)
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
