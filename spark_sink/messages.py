"""Messages: an epoch's records in an envelope, as rows of Spark's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

from spark_sink.envelopes.envelope import Wrapping
from spark_sink.timestamps import timestamp

# What orders messages as the database changed.
ORDER: Final = ("commit_timestamp", "server_transaction_id", "record_sequence", "number")
_TIMESTAMPS: Final = ("commit_timestamp", "low_watermark")
_MESSAGES: Final = "array<struct<table_name string, key string, value string>>"


def messages(changes: DataFrame, wrapping: Wrapping) -> DataFrame:
    """One row a message: table_name, key, value, low_watermark, and the columns of ORDER.

    Args:
        changes: rows of the output's contract.
        wrapping: the envelope.
    """
    # As numbers: Python's workers would make datetimes of the machine's own time zone of them.
    columns = [
        F.unix_micros(name).alias(name) if name in _TIMESTAMPS else F.col(name)
        for name in changes.columns
    ]
    wrap = F.udf(_wrap(wrapping), _MESSAGES, useArrow=False)
    kept = [*ORDER[:3], "low_watermark"]
    wrapped = changes.select(*kept, wrap(F.struct(*columns)).alias("messages"))
    return wrapped.select(*kept, F.posexplode("messages").alias("number", "message")).select(
        "message.*", "number", *kept
    )


def _wrap(wrapping: Wrapping) -> Callable[[Row], list[tuple[str | None, ...]]]:
    def wrap(row: Row) -> list[tuple[str | None, ...]]:
        record: Mapping[str, Any] = row.asDict(recursive=True)
        moments = {name: timestamp(record[name] * 1_000) for name in _TIMESTAMPS}
        return [(m.table, m.key, m.value) for m in wrapping.messages({**record, **moments})]

    return wrap
