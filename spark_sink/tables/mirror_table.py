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
    SOFT_DELETE,
    merge_statement,
)
from slackwater.spark_sink.sql.text import identifier
from slackwater.spark_sink.tables.managed_table import Addition, OwnTable
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import datetime_to_rfc3339


class MirrorTable(OwnTable):
    """A mirror of one table: see OwnTable.

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

    def merge(self, newest: DataFrame, columns: Sequence[Column]) -> None:
        """Apply an epoch's changes of the table in one commit.

        Args:
            newest: as newest_changes() gives them.
            columns: those that it has.

        Raises:
            PublishError: two processes committed at once; the epoch is read again.
        """
        view = f"newest_{uuid.uuid4().hex}"
        newest.createOrReplaceTempView(view)
        try:
            self._sql(merge_statement(self._name, view, columns, keeps_deleted=self._keeps_deleted))
        finally:
            self._spark.catalog.dropTempView(view)

    def add(self, rows: DataFrame, addition: Addition) -> None:
        """See OwnTable; rows of an initial scan, which are not deleted."""
        if self._keeps_deleted:
            at = F.lit(addition.low_watermark)
            rows = rows.withColumns({IS_DELETED: F.lit(False), CHANGED_AT: at})
        super().add(rows, addition)

    def state(self, low_watermark: datetime) -> None:
        """Say in the mirror's properties up to when it has all changes.

        Raises:
            PublishError: two processes committed at once.
        """
        self._format.state(self._spark, self._path, datetime_to_rfc3339(low_watermark))

    def _declared(self, columns: Sequence[Column]) -> str:
        soft = [f"{name} {kind}" for name, kind in SOFT_DELETE.items()]
        return ", ".join([_listed(columns), *(soft if self._keeps_deleted else ())])

    def _missing(self, columns: Sequence[Column]) -> str:
        # Neither Spark nor Spanner tells upper from lower case in names.
        types = {
            field.name.lower(): field.dataType.simpleString().upper()
            for field in (self._schema or StructType())
        }
        for column in columns:
            found = types.get(column.name.lower(), column.spark_type)
            if found != column.spark_type:
                raise MirrorColumnError(
                    f"column {column.name} of the mirror {self._path} is {found}, and in"
                    f" {self._table} it has become {column.spanner_type}.",
                    "Rename the mirror's column or drop it, and run the pipeline again",
                )
        return _listed([column for column in columns if column.name.lower() not in types])


def read_stated(
    spark: SparkSession, path: str, table_format: TableFormat
) -> tuple[DataFrame, str] | None:
    """A mirror as it stands at the low watermark that it states, without rows marked as deleted.

    Returns:
        Its rows, and the low watermark in RFC 3339; None where no mirror states one.
    """
    found = table_format.stated(spark, path)
    if found is None:
        return None
    rows, low_watermark = found
    if IS_DELETED in rows.columns:
        rows = rows.where(~F.col(IS_DELETED)).drop(*SOFT_DELETE)
    return rows, low_watermark


def _listed(columns: Sequence[Column]) -> str:
    return ", ".join(f"{identifier(column.name)} {column.spark_type}" for column in columns)
