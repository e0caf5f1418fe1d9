"""A mirror in BigQuery whose rows BigQuery replaces by their keys, without a statement.

Rows of a request are seen at once, before the epoch's commit: each table goes on by itself. The low
watermark in the table of marks says up to when all of them are complete.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from google.cloud import bigquery
from google.cloud.bigquery.table import PrimaryKey, TableConstraints

from slackwater.spark_sink.errors import BigQueryError
from slackwater.spark_sink.output.bigquery.upsert_stream import CHANGE_TYPE
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.in_bigquery.bigquery_access import BigQueryAccess
from slackwater.spark_sink.tables.in_bigquery.dataset_log import DatasetLog
from slackwater.spark_sink.tables.in_bigquery.mirroring import require_primary_key
from slackwater.spark_sink.tables.row_merges.merged_rows import places
from slackwater.spark_sink.tables.row_merges.row_changes import IS_DELETED, IS_WHOLE
from slackwater.spark_sink.tables.table_changes import MergePolicy

_REMEDY: Final = "Name another dataset, and set sink.consistency to transaction"


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

    def take_over(self) -> int | None:
        """Set the staleness, which a process may have died without, as in _fresh()."""
        if self._staleness is not None:
            self._dataset.set_staleness(self._name, self._staleness)
        return super().take_over()

    def _layout(
        self, fields: "Sequence[bigquery.SchemaField]", key: Sequence[str]
    ) -> dict[str, Any]:
        types = {field.name: field.field_type for field in fields}
        require_primary_key(self._id, {name: types[name] for name in key})
        return {
            **super()._layout(fields, key),
            "table_constraints": TableConstraints(PrimaryKey(list(key)), None),
            "max_staleness": self._staleness,
        }

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column that is not the key's; see TableAccess."""
        self._require_key([column for column in self._key if column != name])
        super().rename_column(name, new_name)

    @cached_property
    def _key(self) -> list[str]:
        """The columns of the primary key, which stay as they were when the table was made."""
        constraints = self._existing().table_constraints
        key = None if constraints is None else constraints.primary_key
        return [] if key is None else list(key.columns)

    def _insert(self, rows: pa.Table) -> None:
        """Insert rows of a scan's chunk."""
        self._require_values(rows)
        self._log.upsert(self._name, _with_type(rows, "UPSERT"))

    def _merge(self, rows: pa.Table | None, columns: Sequence[Column], policy: MergePolicy) -> None:
        """Apply changes before their commit.

        Raises:
            BigQueryError: a change has a part of its row only, or another key than the mirror.
        """
        if rows is not None:
            if not pc.all(rows.column(IS_WHOLE), min_count=0).as_py():
                raise BigQueryError(
                    f"{self._id}: a change has a part of its row only, and consistency: table"
                    " replaces rows.",
                    f"{_REMEDY}; or let the change stream capture whole rows (value_capture_type ="
                    " 'NEW_ROW')",
                )
            self._require_key([column.name for column in columns if column.is_key])
            self._require_values(rows)
        present = None
        if policy.cleared_at is not None or any(column.absent_at for column in columns):
            names = "*" if policy.cleared_at is None else ", ".join(f"`{n}`" for n in self._key)
            with self._fresh():
                rows_now = self._rows(f"SELECT {names} FROM `{self._id}`")
            own = self._own_columns(rows_now.column_names)
            present = rows_now.select(own.names).cast(own)
        for changes in changes_of(rows, present, columns, policy):
            self._log.upsert(self._name, changes)

    def _require_key(self, key: Sequence[str]) -> None:
        if sorted(key) != sorted(self._key):
            raise BigQueryError(
                f"{self._id}: its primary key is {', '.join(self._key)}, and the table's is another"
                " one by now.",
                _REMEDY,
            )

    def _require_values(self, rows: pa.Table) -> None:
        for name in self._key:
            if rows.column(name).null_count:
                raise BigQueryError(
                    f"{self._id}: a key has NULL in {name}, which a primary key of BigQuery's can't"
                    " have.",
                    _REMEDY,
                )

    @contextmanager
    def _fresh(self) -> Iterator[None]:
        """Have queries inside see all changes. Only the table's owner may ask for that."""
        staleness = self._dataset.set_staleness(self._name, None)
        try:
            yield
        finally:
            self._dataset.set_staleness(self._name, staleness)


def changes_of(
    rows: pa.Table | None, present: pa.Table | None, columns: Sequence[Column], policy: MergePolicy
) -> Iterator[pa.Table]:
    """Yield the changes that bring a mirror to the end of an epoch, with the column CHANGE_TYPE.

    Args:
        rows: as latest_rows() makes them, all whole; None for no changes.
        present: the mirror's rows, if the epoch changes others than its own; otherwise None. Of
            those that are cleared the key is enough.
        columns: those of the rows, under the mirror's names.
        policy: for rows that the epoch does not change.
    """
    key = [column for column in columns if column.is_key]
    if present is not None:
        if rows is not None:
            changed = places(present.select([column.name for column in key]), rows, key)
            present = present.filter(pc.is_null(changed))
        if policy.cleared_at is not None:
            yield _with_type(present, "DELETE")
        else:
            absent = [column.name for column in columns if column.absent_at is not None]
            yield _with_type(present.drop_columns(absent), "UPSERT")
    if rows is not None:
        types = pc.if_else(rows.column(IS_DELETED), "DELETE", "UPSERT")
        names = [column.name for column in columns]
        yield rows.select(names).append_column(CHANGE_TYPE, types)


def _with_type(rows: pa.Table, change: str) -> pa.Table:
    return rows.append_column(CHANGE_TYPE, pa.repeat(pa.scalar(change), rows.num_rows))


def _interval(milliseconds: int) -> str:
    """Return a duration as BigQuery's interval: years-months, days, hours:minutes:seconds."""
    minutes, seconds = divmod(milliseconds // 1_000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"0-0 0 {hours}:{minutes}:{seconds}"
