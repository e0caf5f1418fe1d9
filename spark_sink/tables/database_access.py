"""The base of accesses to tables in a database, which have one log."""

import json
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Final, Protocol

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.row_merges.corrections import with_corrections
from slackwater.spark_sink.tables.table_access import TableAccess
from slackwater.spark_sink.tables.table_changes import MergeId, MergePolicy

# In a table's comment or description, as JSON: what other formats have in properties.
PIPELINE_PROPERTY: Final = "slackwater.pipeline"


def properties_in(comment: str | None) -> Mapping[str, str]:
    """Return the properties in a table's comment; none for a table of others."""
    try:
        properties = json.loads(comment or "")
    except ValueError:
        return {}
    return properties if isinstance(properties, dict) else {}


class DatabaseLog(Protocol):
    """The log of all tables; each commit is an epoch, or a chunk of a scan."""

    @property
    def is_open(self) -> bool:
        """Whether what is added now is to be committed. Inside of committing()."""

    def written(self, rows: DataFrame) -> Iterator[pa.RecordBatch]:
        """Have tasks write rows, and yield them from their files."""

    def take_over(self, logged: Callable[[], datetime | None]) -> datetime | None:
        """Fence former owners; see TableStore.take_over()."""

    def committing(
        self,
        low_watermark: datetime,
        chunk: int | None,
        *,
        is_stated: bool,
        incomplete: Sequence[str],
    ) -> AbstractContextManager[None]:
        """Commit what is written inside; see TableStore.at_once()."""

    def own_properties(self) -> Sequence[Mapping[str, str]]:
        """Return the properties of each table of the pipeline.

        Raises:
            SinkError: one can't be written to.
        """

    def check(self) -> None:
        """Ask whether tables can be made, and those there can be written to, for `check`."""


class DatabaseAccess(TableAccess):
    """The TableAccess of a table in a database.

    Args:
        log: of all tables.
    """

    def __init__(self, log: DatabaseLog) -> None:
        self._of_all = log

    def take_over(self) -> int | None:
        """Do nothing: the log of all tables is taken over; see TableAccess."""
        return None

    def merge(
        self,
        rows: pa.Table | None,
        columns: Sequence[Column],
        merge_id: MergeId,  # noqa: ARG002
        policy: MergePolicy,
    ) -> None:
        """Apply an epoch's changes, with the commit that is being made; see TableAccess."""
        if not self._of_all.is_open:
            return
        if rows is not None and policy.corrected is not None:
            rows = with_corrections(rows, policy.corrected, columns)
        self._merge(rows, columns, policy)

    @abstractmethod
    def _merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        """Apply changes after corrections, in a commit that is new."""

    def collected(self, rows: DataFrame) -> pa.Table:
        """Return rows that tasks have written; see TableAccess."""
        return pa.Table.from_batches(self._of_all.written(rows), arrow_schema_of(rows.schema))

    def publish_watermark(self, merge_id: MergeId) -> None:
        """Do nothing: all tables state one low watermark, when their commit is made."""

    def maintain(self, keep_s: float | None) -> None:
        """Do nothing: the database does that; see TableAccess."""

    @abstractmethod
    def read(self, spark: SparkSession, within: RowRange | None = None) -> DataFrame:
        """Return the rows as they are now; see TableStore."""

    @abstractmethod
    def stated(self) -> str | None:
        """Return the low watermark of the table's rows; None if it lacks some, or without one."""

    @abstractmethod
    def read_at_watermark(self, spark: SparkSession) -> tuple[DataFrame, str] | None:
        """Return the rows, and the low watermark that they have; None without one."""
