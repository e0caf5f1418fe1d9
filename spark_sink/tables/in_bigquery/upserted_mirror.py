"""A mirror in BigQuery whose rows BigQuery replaces by their keys, without a statement.

It is consistent by itself: other mirrors may have an epoch earlier or later. The low watermark in
the table of marks says up to when all of them are complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.in_bigquery.bigquery_access import BigQueryAccess
from slackwater.spark_sink.tables.in_bigquery.dataset_log import DatasetLog
from slackwater.spark_sink.tables.row_merges.merged_rows import places
from slackwater.spark_sink.tables.row_merges.row_changes import IS_DELETED, IS_WHOLE
from slackwater.spark_sink.tables.table_changes import MergePolicy

if TYPE_CHECKING:
    from google.cloud import bigquery
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.row_range import RowRange


@dataclass(frozen=True, slots=True)
class Upserts:
    """The changes of an epoch to a mirror.

    Attributes:
        upserted: whole rows, in tables of different columns.
        deleted: rows that go, likewise; of some their key alone.
    """

    upserted: Sequence[pa.Table]
    deleted: Sequence[pa.Table]


class UpsertedMirror(BigQueryAccess):
    """The TableAccess of such a mirror.

    Args:
        log, name: see BigQueryAccess.
        max_staleness_ms: how far behind queries may be, in milliseconds. They cost less then:
            BigQuery applies changes in the background. None leaves it to others, and queries of a
            new mirror see all.
    """

    def __init__(self, log: DatasetLog, name: str, max_staleness_ms: int | None) -> None:
        super().__init__(log, name)
        self._staleness = None if max_staleness_ms is None else _interval(max_staleness_ms)

    def take_over(self) -> None:
        """Set the staleness, which a process may have died without, as in _fresh()."""
        if self._staleness is not None:
            self._dataset.set_staleness(self._name, self._staleness)

    def _layout(self, fields: Sequence[bigquery.SchemaField], key: Sequence[str]) -> dict[str, Any]:
        from google.cloud.bigquery.table import PrimaryKey, TableConstraints

        return {
            **super()._layout(fields, key),
            "table_constraints": TableConstraints(PrimaryKey(list(key)), None),
            "max_staleness": self._staleness,
        }

    def _insert(self, rows: pa.Table) -> None:
        """Insert rows of a scan's chunk."""
        constraints = self._existing().table_constraints
        key = None if constraints is None else constraints.primary_key
        self._require_keys(rows, [] if key is None else key.columns)
        self._log.upsert(self._name, rows, "UPSERT")

    def _merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        """Apply changes before their commit.

        Raises:
            BigQueryError: a change has a part of its row only, or a key with NULL.
        """
        if rows is not None:
            self._require_replaceable(rows, columns)
        forgets = policy.cleared_at is not None or any(column.absent_at for column in columns)
        present = None
        if forgets:
            with self._fresh():
                present = self._own_columns(self._rows(f"SELECT * FROM `{self._id}`"))
        upserts = upserts_of(rows, present, columns, policy)
        for deleted in upserts.deleted:
            self._log.upsert(self._name, deleted, "DELETE")
        for upserted in upserts.upserted:
            self._log.upsert(self._name, upserted, "UPSERT")

    def _require_replaceable(self, rows: pa.Table, columns: Sequence[Column]) -> None:
        if not pc.all(rows.column(IS_WHOLE), min_count=0).as_py():
            raise BigQueryError(
                f"{self._id}: a change has a part of its row only, and consistency: table replaces"
                " rows.",
                "Let the change stream capture whole rows (value_capture_type = 'NEW_ROW'), or name"
                " another dataset and set sink.consistency to transaction",
            )
        self._require_keys(rows, [column.name for column in columns if column.is_key])

    def _require_keys(self, rows: pa.Table, key: Sequence[str]) -> None:
        for name in key:
            if rows.column(name).null_count:
                raise BigQueryError(
                    f"{self._id}: a key has NULL in {name}, which a primary key of BigQuery's can't"
                    " have.",
                    "Name another dataset, and set sink.consistency to transaction",
                )

    def read(self, spark: SparkSession, within: RowRange | None = None) -> DataFrame:
        """Return the rows with all changes until now; see TableStore."""
        with self._fresh():
            return super().read(spark, within)

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """Have queries inside see all changes. Only the table's owner may ask for that."""
        staleness = self._dataset.set_staleness(self._name, None)
        try:
            yield
        finally:
            self._dataset.set_staleness(self._name, staleness)


def upserts_of(
    rows: pa.Table | None, present: pa.Table | None, columns: Sequence[Column], policy: MergePolicy
) -> Upserts:
    """Return the changes that bring a mirror to the end of an epoch.

    Args:
        rows: as latest_rows() makes them, all whole; None for no changes.
        present: the mirror's rows, if the epoch changes others than its own; otherwise None.
        columns: those of the rows, under the mirror's names.
        policy: for rows that the epoch does not change.
    """
    upserted, deleted = [], []
    key = [column for column in columns if column.is_key]
    if present is not None:
        if rows is not None:
            changed = places(present.select([column.name for column in key]), rows, key)
            present = present.filter(pc.is_null(changed))
        if policy.cleared_at is not None:
            deleted.append(present)
        else:
            absent = [column.name for column in columns if column.absent_at is not None]
            upserted.append(present.drop_columns(absent))
    if rows is not None:
        is_deleted = rows.column(IS_DELETED)
        deleted.append(rows.filter(is_deleted).select([column.name for column in key]))
        names = [column.name for column in columns]
        upserted.append(rows.filter(pc.invert(is_deleted)).select(names))
    return Upserts(upserted, deleted)


def _interval(milliseconds: int) -> str:
    """Return a duration as BigQuery's interval: years-months, days, hours:minutes:seconds."""
    minutes, seconds = divmod(milliseconds // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"0-0 0 {hours}:{minutes}:{seconds}"
