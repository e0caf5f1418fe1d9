"""What a rescan has to correct in the mirrors: found after one epoch, merged with the next.

A chunk of a table is compared with its mirror when both show the same low watermark. The rows that
differ are merged together with the next epoch, by the same MERGE: what keeps a former owner from
merging an epoch keeps it from correcting rows, too. The range is compared again after it, until
nothing differs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from slackwater.spark_sink.sink import Chunk, ChunkResult
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.sql.quoting import identifier, literal
from slackwater.spark_sink.tables.mirror_table import MirrorTable
from slackwater.spark_sink.tables.rescans.chunk_comparison import compare_chunk, first_key_range
from slackwater.spark_sink.tables.row_merges.corrections import Corrections
from slackwater.spark_sink.tables.row_merges.row_changes import (
    COMMIT_TIMESTAMP,
    IS_DELETED,
    IS_WHOLE,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.staging import Staging

_log = logging.getLogger(__name__)

_KIND: Final = "corrections"
# Of an epoch, which gets longer by them; the range is compared again after it.
_WRONG_ROWS_MAX: Final = 2_000


@dataclass(frozen=True, slots=True)
class StagedCorrections:
    """Corrections of one table that await an epoch.

    Attributes:
        corrections: what differs.
        staged: reads the same rows, which are staged. They are merged with the next epoch, which
            the table refuses once a successor has merged it.
    """

    corrections: Corrections
    staged: Callable[[SparkSession], DataFrame]

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows in the columns of latest_changes()."""
        columns = self.corrections.columns
        fields = (F.col(identifier(column.name)) for column in columns)
        return self.staged(spark).select(
            F.col(COMMIT_TIMESTAMP).alias("commit_timestamp"),
            F.lit("").alias("key"),
            F.col(IS_DELETED).alias("deleted"),
            F.col(IS_WHOLE).alias("whole"),
            F.expr("CAST(map() AS map<string, string>)").alias("changed_columns"),
            F.struct(*fields).alias("row"),
        )

    def applied(self, latest: DataFrame) -> DataFrame:
        """Return what an epoch does to the table's rows after they were corrected.

        Args:
            latest: rows of latest_changes(), with the same columns.
        """
        if not self.corrections.rows.num_rows:
            return latest
        return corrected(latest, self.frame(latest.sparkSession), self.corrections.columns)


class MirrorCorrections:
    """Finds what differs in the mirrors, and keeps it for the next epoch.

    Args:
        staging: the sink's.
    """

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._awaiting: dict[str, StagedCorrections] = {}

    def compare(self, mirror: MirrorTable, chunk: Chunk) -> ChunkResult:
        """Compare a chunk with its mirror; see Rescannable.take_chunk()."""
        columns = mirror_columns(chunk.columns)
        # An empty table gets a mirror, too.
        rows = mirror.current_rows(first_key_range(chunk))
        compared = compare_chunk(rows, chunk, columns)
        if compared.unconverted:
            _log.warning(
                "%d rows of %s can't be converted: the mirror keeps what it has",
                compared.unconverted,
                chunk.table,
            )
        if rows is not None and compared.is_equal:
            return ChunkResult(is_done=True, corrected=0)
        wrong = compared.wrong.slice(0, _WRONG_ROWS_MAX)
        corrections = Corrections(columns, chunk.low_watermark, wrong)
        return self._keep(chunk.table, corrections)

    def take(
        self,
        changed: Mapping[str, Sequence[Column]],
        others: Collection[str],
        low_watermark: datetime,
    ) -> dict[str, StagedCorrections]:
        """Return the corrections to be merged with an epoch, once; the others are forgotten.

        Args:
            changed: the columns of the tables that the epoch changes.
            others: tables of which the epoch drops former rows or columns.
            low_watermark: the epoch's.
        """
        awaiting, self._awaiting = self._awaiting, {}
        return {
            table: staged
            for table, staged in awaiting.items()
            if staged.corrections.low_watermark <= low_watermark
            and table not in others
            and staged.corrections.fit(changed.get(table, ()))
        }

    def _keep(self, table: str, corrections: Corrections) -> ChunkResult:
        if not self._awaiting:
            # Those before were merged, or forgotten.
            self._staging.discard_beside(_KIND)
        staged = self._staging.stage_beside(_KIND, corrections.rows)
        self._awaiting[table] = StagedCorrections(corrections, staged)
        return ChunkResult(is_done=False, corrected=corrections.rows.num_rows)


def corrected(latest: DataFrame, fixes: DataFrame, columns: Sequence[Column]) -> DataFrame:
    """Return what an epoch does to a table's rows after they were corrected.

    Args:
        latest: as latest_changes() has them.
        fixes: the same, as StagedCorrections.frame() has them.
        columns: the columns of both rows.
    """
    own, fix = latest.alias("latest"), fixes.alias("fix")
    key = [identifier(column.name) for column in columns if column.is_key]
    is_same = F.expr(" AND ".join(f"latest.row.{k} <=> fix.row.{k}" for k in key) or "true")
    is_completed = "(NOT latest.whole AND NOT coalesce(fix.deleted, true))"
    fields = ", ".join(f"{_value(column, is_completed)}" for column in columns)
    changes = own.join(fix, is_same, "left").selectExpr(
        "latest.commit_timestamp",
        "latest.key",
        "latest.deleted",
        f"(latest.whole OR {is_completed}) AS whole",
        "latest.changed_columns",
        f"struct({fields}) AS row",
    )
    return changes.unionByName(fix.join(own, is_same, "left_anti"))


def _value(column: Column, is_completed: str) -> str:
    name = identifier(column.name)
    if column.is_key:
        return f"latest.row.{name} AS {name}"
    is_kept = f"NOT map_contains_key(latest.changed_columns, {literal(column.name)})"
    return (
        f"CASE WHEN {is_completed} AND {is_kept} THEN fix.row.{name}"
        f" ELSE latest.row.{name} END AS {name}"
    )
