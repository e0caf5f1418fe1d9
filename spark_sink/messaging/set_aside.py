"""Dead letters of messages that a service refuses: their records, set aside as files."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from slackwater.spark_sink.message_rows import ORDER, ROW_HASH, row_hash
from slackwater.spark_sink.messaging.delivery import Mark
from slackwater.spark_sink.output.dead_letters import publish_letters

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.spark_sink.output.epoch_place import EpochPlace

_log = logging.getLogger(__name__)


def set_aside(
    refused: DataFrame, changes: DataFrame, mark: Mark, reason: str, place_of_sink: EpochPlace
) -> None:
    """Write the records of refused messages; written again they are the same files.

    Args:
        refused: rows with topic, table_name, ROW_HASH and the columns of ORDER.
        changes: the records that all messages were made of.
        mark: where they end.
        reason: of the refusal.
        place_of_sink: where its folder of dead letters is.
    """
    from pyspark.sql import functions as F

    # Each part of a scan's chunk numbers its records from 0: only keys tell them apart.
    place = ["table_name", *ORDER[:3]]
    named = refused.select(*place, "number", "topic", F.col(ROW_HASH).alias("hash"))
    identity = F.bit_xor(F.xxhash64(*named.columns))
    ((count, hashed),) = named.agg(F.count(F.lit(1)), identity).collect()
    if not count:
        return
    hashes = F.transform("mods", lambda mod: row_hash(F.col("table_name"), mod["keys"]))
    letters = (
        changes.select(
            *place,
            F.struct(*[c for c in changes.columns if c != "topic"]).alias("record"),
            hashes.alias("hashes"),
        )
        .join(named, on=place)
        .where(F.array_contains("hashes", F.col("hash")))
        .select("table_name", "topic", F.col("number").alias("message_number"), "record")
    )
    about = f"{count}-{hashed % 2**64:016x}"
    written = publish_letters(letters, place_of_sink, about, mark.low_watermark, mark.chunk)
    _log.warning("messages were refused (%s); their records were set aside in %s", reason, written)
