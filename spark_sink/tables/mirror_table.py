"""One mirror: a Delta or Iceberg table that is kept equal to a table of Spanner's."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it
from pyspark.sql.types import StructType

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


class MirrorTable(ManagedTable):
    """A mirror of one table: see ManagedTable.

    Args:
        keeps_deleted: a deleted row stays, and two columns say so: see merge_statement.
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
            latest: as latest_changes() gives them.
            columns: those that it has.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        view = f"latest_{uuid.uuid4().hex}"
        latest.createOrReplaceTempView(view)
        try:
            self._sql(merge_statement(self._name, view, columns, keeps_deleted=self._keeps_deleted))
        finally:
            self._spark.catalog.dropTempView(view)

    def add(self, rows: DataFrame, append_id: AppendId) -> None:
        """See ManagedTable; rows of an initial scan, which are not deleted."""
        if self._keeps_deleted:
            at = F.lit(append_id.low_watermark)
            rows = rows.withColumns({IS_DELETED: F.lit(False), CHANGED_AT: at})
        super().add(rows, append_id)

    def publish_watermark(self, low_watermark: datetime) -> None:
        """Say in the mirror's properties up to when it has all changes.

        Raises:
            PublishError: two processes committed at once.
        """
        self._format.publish_watermark(self._spark, self._path, datetime_to_rfc3339(low_watermark))

    def _column_definitions(self, columns: Sequence[Column]) -> str:
        soft = [f"{name} {kind}" for name, kind in SOFT_DELETE_COLUMNS.items()]
        return ", ".join([_definitions(columns), *(soft if self._keeps_deleted else ())])

    def _missing_columns(self, columns: Sequence[Column]) -> str:
        # Neither Spark nor Spanner tells upper from lower case in names.
        types = {
            field.name.lower(): field.dataType.simpleString().upper()
            for field in (self._schema or StructType())
        }
        for column in columns:
            mirror_type = types.get(column.name.lower(), column.spark_type)
            if mirror_type != column.spark_type:
                raise MirrorColumnError(
                    f"column {column.name} of the mirror {self._path} is {mirror_type}, and in"
                    f" {self._table} it has become {column.spanner_type}.",
                    "Rename the mirror's column or drop it, and run the pipeline again",
                )
        return _definitions([column for column in columns if column.name.lower() not in types])


def read_mirror(
    spark: SparkSession, path: str, table_format: TableFormat
) -> tuple[DataFrame, str] | None:
    """A mirror as it stands at the low watermark that it states, without rows marked as deleted.

    Returns:
        Its rows, and the low watermark in RFC 3339; None where no mirror states one.
    """
    state = table_format.read_at_watermark(spark, path)
    if state is None:
        return None
    rows, low_watermark = state
    if IS_DELETED in rows.columns:
        rows = rows.where(~F.col(IS_DELETED)).drop(*SOFT_DELETE_COLUMNS)
    return rows, low_watermark


def _definitions(columns: Sequence[Column]) -> str:
    return ", ".join(f"{identifier(column.name)} {column.spark_type}" for column in columns)
