"""One epoch as it is merged into each mirror that it changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from slackwater.spark_sink.output.dead_letters import DeadLetters
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.latest_changes import latest_changes
from slackwater.spark_sink.tables.mirror_table import MirrorTable
from slackwater.spark_sink.tables.table_changes import MergeId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from slackwater.spark_sink.tables.row_merges.corrections import Corrections
    from slackwater.spark_sink.tables.row_merges.small_epoch import SmallEpoch


@dataclass(frozen=True, slots=True)
class MirrorEpoch:
    """The effect of an epoch on mirrors.

    Attributes:
        changes: returns its records without those of former tables, which Spark is to read; None if
            it has none.
        small: the same, if the driver folds them.
        present: the tables that have records.
        cleared: the tables whose mirrors hold rows of a former table, and until when.
        unchanged: tables without records whose mirrors hold rows or values of former ones.
        corrections: those of a rescan before the epoch, by table.
        merge_id: identifies the epoch's MERGEs.
    """

    changes: Callable[[], DataFrame] | None
    small: SmallEpoch | None
    present: Collection[str]
    cleared: Mapping[str, datetime]
    unchanged: Collection[str]
    corrections: Mapping[str, Corrections]
    merge_id: MergeId

    def merge(
        self,
        mirror: MirrorTable,
        columns: Sequence[Column],
        dead_letters: DeadLetters,
    ) -> None:
        """Bring a mirror to the epoch's low watermark, in one commit.

        Args:
            mirror: the table's.
            columns: the columns of its rows.
            dead_letters: takes records that can't be converted.

        Raises:
            PublishError: two processes committed at the same time; the epoch is read again.
            BadRecordError: a record can't be converted, and dead letters are off.
        """
        table = mirror.table
        if table in self.unchanged:
            mirror.forget(columns, self.merge_id, self.cleared.get(table))
            return
        if self._merge_rows(mirror, columns):
            return
        assert self.changes is not None  # noqa: S101 - otherwise there is nothing to fold
        changes = self.changes()
        dead_letters.write(
            lambda is_checked: latest_changes(changes, table, columns, is_checked=is_checked),
            lambda newest: mirror.merge(
                newest,
                columns,
                self.merge_id,
                self.cleared.get(table),
                self.corrections.get(table),
            ),
            changes,
            table,
            self.merge_id.low_watermark,
        )

    def _merge_rows(self, mirror: MirrorTable, columns: Sequence[Column]) -> bool:
        """Merge what the driver can fold; return False if Spark has to fold it."""
        if self.small is None and mirror.table in self.present:
            return False
        latest = {} if self.small is None else self.small.latest(mirror.table)
        fix = self.corrections.get(mirror.table)
        if fix is not None and not latest and not fix.rows.num_rows:
            return True
        return mirror.merge_rows(latest, columns, self.merge_id, fix)
