"""An epoch that is too large for the driver alone: folded by Spark, held in the driver's memory.

It holds one row for each key that the epoch changes.
"""

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_CHANGED,
    IS_DELETED,
    IS_WHOLE,
)


def changed_rows(
    latest: DataFrame, columns: Sequence[Column], targets: Sequence[Column]
) -> DataFrame:
    """Return rows of latest_changes() in the columns of latest_rows(), under a table's names.

    Args:
        latest: the rows of latest_changes().
        columns: the columns of their rows, which the table has.
        targets: the same, under the table's names.
    """
    pairs = list(zip(columns, targets, strict=True))
    values = (F.col(f"row.{identifier(c.name)}").alias(target.name) for c, target in pairs)
    changed = (
        F.expr(f"map_contains_key(changed_columns, {literal(c.name)})").alias(
            IS_CHANGED + target.name
        )
        for c, target in pairs
        if not c.is_key
    )
    return latest.select(
        *values,
        F.col("deleted").alias(IS_DELETED),
        F.col("whole").alias(IS_WHOLE),
        F.col("commit_timestamp").alias(COMMIT_TIMESTAMP),
        *changed,
    )
