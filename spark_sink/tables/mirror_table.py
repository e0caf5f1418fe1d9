"""The mirror of one Spanner table: a Delta or Iceberg table that is kept equal to it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from slackwater.spark_sink.errors import MirrorColumnError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.merge_statement import (
    CHANGED_AT,
    IS_DELETED,
    SOFT_DELETE_COLUMNS,
    merge_statement,
)
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.managed_table import AppendId, ManagedTable
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_rfc3339

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class MirrorTable(ManagedTable):
    """The mirror of one Spanner table; ManagedTable says what the other arguments are.

    Args:
        keeps_deleted: deleted rows stay, marked by the columns SOFT_DELETE_COLUMNS.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        table: str,
        table_format: TableFormat,
        *,
        keeps_deleted: bool = False,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(spark, path, table, table_format, properties=properties)
        self._keeps_deleted = keeps_deleted

    def merge(self, latest: DataFrame, columns: Sequence[Column]) -> None:
        """Apply an epoch's changes of the table in one commit.

        Args:
            latest: the rows of latest_changes().
            columns: the columns of their rows.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
        """
        view = f"latest_{uuid.uuid4().hex}"
        latest.createOrReplaceTempView(view)
        try:
            self._sql(merge_statement(self._name, view, columns, keeps_deleted=self._keeps_deleted))
        finally:
            self._spark.catalog.dropTempView(view)

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """Append rows of an initial scan, which are not deleted, as ManagedTable does."""
        from pyspark.sql import functions as F

        if self._keeps_deleted:
            at = F.lit(append_id.low_watermark)
            rows = rows.withColumns({IS_DELETED: F.lit(False), CHANGED_AT: at})
        super().add(rows, append_id)

    def publish_watermark(self, low_watermark: datetime) -> None:
        """Write to the mirror's properties up to when it has all changes.

        Raises:
            PublishError: two processes committed at the same time.
        """
        self._format.publish_watermark(self._spark, self._path, datetime_to_rfc3339(low_watermark))

    def _column_definitions(self, columns: Sequence[Column]) -> str:
        soft = [f"{name} {kind}" for name, kind in SOFT_DELETE_COLUMNS.items()]
        return ", ".join([_definitions(columns), *(soft if self._keeps_deleted else ())])

    def _missing_columns(self, columns: Sequence[Column]) -> str:
        # Spark and Spanner both ignore case in names.
        types = {
            field.name.lower(): field.dataType.simpleString().upper()
            for field in (self._schema or ())
        }
        for column in columns:
            mirror_type = types.get(column.name.lower(), column.spark_type)
            if mirror_type != column.spark_type:
                raise MirrorColumnError(
                    f"column {column.name} of the mirror {self._path} has type {mirror_type},"
                    f" but in {self._table} it is now {column.spanner_type}.",
                    "Rename or drop the mirror's column, and run the pipeline again",
                )
        return _definitions([column for column in columns if column.name.lower() not in types])


def read_mirror(
    spark: SparkSession, path: str, table_format: TableFormat
) -> tuple[DataFrame, str] | None:
    """Read a mirror at the low watermark that it has published, without rows marked as deleted.

    Returns:
        The rows, and the low watermark in RFC 3339; None if the mirror has published none.
    """
    from pyspark.sql import functions as F

    state = table_format.read_at_watermark(spark, path)
    if state is None:
        return None
    rows, low_watermark = state
    if IS_DELETED in rows.columns:
        rows = rows.where(~F.col(IS_DELETED)).drop(*SOFT_DELETE_COLUMNS)
    return rows, low_watermark


def _definitions(columns: Sequence[Column]) -> str:
    return ", ".join(f"{identifier(column.name)} {column.spark_type}" for column in columns)
