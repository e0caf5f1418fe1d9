"""The corrections of a rescan to mirrors: found after one epoch, merged with the next.

A chunk of a table is compared with its mirror when both show the same low watermark. The rows that
differ are merged together with the next epoch, by the same MERGE: so a former owner, which can't
merge an epoch, can't correct rows either. The range is compared again after it, until nothing
differs.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Final

from slackwater.spark_sink.sink import Chunk, ChunkResult
from slackwater.spark_sink.sql.columns import Column, mirror_columns
from slackwater.spark_sink.tables.mirror_table import MirrorTable
from slackwater.spark_sink.tables.rescans.chunk_comparison import compare_chunk, first_key_range
from slackwater.spark_sink.tables.row_merges.corrections import Corrections

_log = logging.getLogger(__name__)

# They make an epoch longer; the range is compared again after it.
_WRONG_ROWS_MAX: Final = 2_000


class MirrorCorrections:
    """The corrections to mirrors that await the next epoch."""

    def __init__(self) -> None:
        self._awaiting: dict[str, Corrections] = {}

    def compare(self, mirror: MirrorTable, chunk: Chunk) -> ChunkResult:
        """Compare a chunk with its mirror; see Rescannable.take_chunk()."""
        columns = mirror_columns(chunk.columns)
        # An empty table gets a mirror, too.
        rows = mirror.current_rows(first_key_range(chunk))
        compared = compare_chunk(
            rows, chunk, columns, has_nulls_in_arrays=mirror.has_nulls_in_arrays
        )
        if compared.unconverted:
            _log.warning(
                "%d rows of %s can't be converted: the mirror keeps what it has",
                compared.unconverted,
                chunk.table,
            )
        if rows is not None and compared.is_equal:
            return ChunkResult(is_done=True, corrected=0)
        wrong = compared.wrong.slice(0, _WRONG_ROWS_MAX)
        self._awaiting[chunk.table] = Corrections(columns, chunk.low_watermark, wrong)
        return ChunkResult(is_done=False, corrected=wrong.num_rows)

    def pop_for_epoch(
        self,
        changed: Mapping[str, Sequence[Column]],
        others: Collection[str],
        low_watermark: datetime,
    ) -> dict[str, Corrections]:
        """Return the corrections to be merged with an epoch, once; the others are forgotten.

        Args:
            changed: the columns of the tables that the epoch changes.
            others: tables of which the epoch drops former rows or columns.
            low_watermark: the epoch's.
        """
        awaiting, self._awaiting = self._awaiting, {}
        return {
            table: corrections
            for table, corrections in awaiting.items()
            if corrections.low_watermark <= low_watermark
            and table not in others
            and corrections.fit(changed.get(table, ()))
        }
