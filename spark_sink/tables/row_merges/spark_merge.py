"""The MERGE of an epoch into a Delta table by Spark: what is too large for the driver."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackwater.spark_sink.sql.merge_statement import forget_statement, merge_statement
from slackwater.spark_sink.tables.table_format import OtherRows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.sql.columns import Column


def merge_by_spark(
    spark: SparkSession,
    table: str,
    latest: DataFrame,
    columns: Sequence[Column],
    others: OtherRows,
) -> None:
    """Apply an epoch's changes in one commit.

    Args:
        spark: the session.
        table: the table's quoted name.
        latest: the rows of latest_changes().
        columns: the columns of their rows, which the table has.
        others: what becomes of other rows.
    """
    view = f"latest_{uuid.uuid4().hex}"
    latest.createOrReplaceTempView(view)
    try:
        spark.sql(
            merge_statement(
                table,
                view,
                columns,
                keeps_deleted=others.are_kept,
                cleared_at=others.cleared_at,
            )
        )
    finally:
        spark.catalog.dropTempView(view)


def forget_by_spark(
    spark: SparkSession, table: str, columns: Sequence[Column], others: OtherRows
) -> None:
    """Drop what a former table or former columns left; arguments as for merge_by_spark()."""
    spark.sql(
        forget_statement(
            table,
            columns,
            keeps_deleted=others.are_kept,
            cleared_at=others.cleared_at,
        )
    )
