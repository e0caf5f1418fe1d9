"""The access to one managed table, by which its kind creates it and adds an epoch's rows."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from slackwater.arrow_schema import arrow_schema_of
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.row_merges.large_epoch import changed_rows
from slackwater.spark_sink.tables.table_changes import (
    AppendId,
    MergeId,
    MergePolicy,
    MissingColumn,
)


class TableAccess(ABC):
    """The access to one managed table: to create, alter, append to and merge into it."""

    @abstractmethod
    def take_over(self) -> int | None:
        """Fence former owners, and return the last epoch's version.

        None without a table, or if the log of all tables tells; see TableFormat.take_over().

        Raises:
            FileSystemError, ObjectStoreError, PublishError: see TableFiles and TableCommits.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Return whether this process has taken the table over, or created it."""

    @abstractmethod
    def source_table(self) -> str | None:
        """Return the full name of the Spanner table that it was created for; None for others."""

    @abstractmethod
    def schema(self) -> StructType:
        """Return the columns as they are now."""

    @abstractmethod
    def create(
        self, definitions: str, properties: Mapping[str, str], columns: Sequence[Column]
    ) -> None:
        """Create the table.

        Args:
            definitions: the columns as CREATE TABLE lists them.
            properties: the table's.
            columns: those of the Spanner table.

        Raises:
            FileSystemError, PublishError: see TableFiles.take_over() and TableCommits.open().
        """

    @abstractmethod
    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, in one commit, for any reader of the format."""

    @abstractmethod
    def add_columns(self, columns: Sequence[MissingColumn]) -> None:
        """Add columns, in one commit."""

    @abstractmethod
    def append(self, rows: DataFrame, append_id: AppendId) -> None:
        """Have tasks write rows; append them in one commit, unless the table has it."""

    @abstractmethod
    def append_rows(self, rows: pa.Table, append_id: AppendId) -> None:
        """Append rows in one commit, unless the table has it, without a job of Spark's.

        Raises:
            ObjectStoreError, PublishError: see TableCommits.append().
        """

    @abstractmethod
    def merge(
        self,
        rows: pa.Table | None,
        columns: Sequence[Column],
        merge_id: MergeId,
        policy: MergePolicy,
    ) -> None:
        """Apply an epoch's changes in one commit, unless the table has its low watermark.

        Args:
            rows: as latest_rows() makes them; None for no changes.
            columns: the columns of the rows, which the table has.
            merge_id: identifies the merge.
            policy: for deleted and unchanged rows.

        Raises:
            ObjectStoreError: the table can't be merged into, or Arrow can't hold its rows.
            PublishError: see TableCommits.append().
        """

    def merge_large(
        self,
        latest: DataFrame,
        columns: Sequence[Column],
        targets: Sequence[Column],
        merge_id: MergeId,
        policy: MergePolicy,
    ) -> None:
        """Merge an epoch that Spark has folded, in the driver's memory; see merge().

        Args:
            latest: the rows of latest_changes().
            columns: the columns of their rows.
            targets: the same, under the names that the table has for them.
            merge_id, policy: see merge().
        """
        rows = self.collected(changed_rows(latest, columns, targets))
        self.merge(rows, targets, merge_id, policy)

    @abstractmethod
    def collected(self, rows: DataFrame) -> pa.Table:
        """Return rows that tasks have written: the JVM's memory need not hold them."""

    @abstractmethod
    def publish_watermark(self, merge_id: MergeId) -> None:
        """Write the table's low watermark to its properties, in RFC 3339.

        Nothing is written if the table states a later low watermark, or has merged a later epoch: a
        former owner that wakes up neither lowers it nor publishes a wrong one.

        Args:
            merge_id: of the epoch up to which it is complete.

        Raises:
            ObjectStoreError, PublishError: see TableCommits.append().
        """

    @abstractmethod
    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; see TableCommits."""


def schema_of_columns(definitions: str) -> pa.Schema:
    """Return columns as CREATE TABLE lists them."""
    columns = StructType.fromDDL(definitions)
    return arrow_schema_of(StructType(list(columns)))  # type: ignore[call-overload]


def schema_of_missing(columns: Sequence[MissingColumn]) -> pa.Schema:
    """Return missing columns; fields that a struct lacks are in a struct of its name."""
    by_struct: defaultdict[str, list[str]] = defaultdict(list)
    definitions = []
    for column in columns:
        if column.struct is None:
            definitions.append(f"{identifier(column.name)} {column.kind}")
        else:
            by_struct[column.struct].append(f"{identifier(column.name)}: {column.kind}")
    structs = (f"{name} STRUCT<{', '.join(fields)}>" for name, fields in by_struct.items())
    return schema_of_columns(", ".join([*definitions, *structs]))
