"""Comparison of a table's rows in a range of keys with those of its mirror, at one cut."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from slackwater.column_types import element_type
from slackwater.spark_sink.output.row_range import RowRange
from slackwater.spark_sink.sink import Chunk
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.sql.key_ranges import SortOrder, range_condition
from slackwater.spark_sink.sql.quoting import identifier
from slackwater.spark_sink.tables.mirror_table import conformed
from slackwater.spark_sink.tables.row_merges.corrections import differences, typed_rows, vanished

# So many more rows of the mirror than of its table are read at once.
_MORE_ROWS: Final = 1_000
# More than a chunk has, so that some of them have vanished.
_KEYS_MAX: Final = 40_000
# The types whose values in files have the order of Spanner's keys.
_NUMBER: Final = "INT64"
_ORDERED: Final = (_NUMBER, "STRING")


@dataclass(frozen=True, slots=True)
class ChunkComparison:
    """The result for one chunk.

    Attributes:
        wrong: the changes that make the mirror's rows equal, as latest_rows() makes them.
        unconverted: the number of the table's rows with a value that is not of its column's type:
            the mirror keeps its own versions of them.
        is_whole: False if the mirror has so many rows that are not in the table that only some of
            these are in wrong, and nothing else.
    """

    wrong: pa.Table
    unconverted: int
    is_whole: bool

    @property
    def is_equal(self) -> bool:
        """Whether nothing has to be corrected."""
        return self.is_whole and not self.wrong.num_rows


def compare_chunk(
    rows: DataFrame | None,
    chunk: Chunk,
    columns: Sequence[Column],
    *,
    has_nulls_in_arrays: bool = True,
) -> ChunkComparison:
    """Compare a chunk with the rows of its mirror.

    Args:
        rows: the mirror's at the chunk's low watermark, without those marked as deleted; None for
            no mirror.
        chunk: all rows of the table in a range of keys.
        columns: the mirror's, as it should have them.
        has_nulls_in_arrays: see TableStore.
    """
    at = chunk.low_watermark
    of_table = chunk.rows
    if not has_nulls_in_arrays:
        arrays = [column.name for column in columns if element_type(column.spanner_type)]
        of_table = [{**row, **{name: _values(row[name]) for name in arrays}} for row in of_table]
    expected = typed_rows(of_table, columns, at)
    unconverted = expected.unconverted.num_rows
    if rows is None:
        return ChunkComparison(expected.rows, unconverted, is_whole=True)
    in_range = _in_range(rows, chunk, columns)
    rows_max = 2 * len(chunk.rows) + _MORE_ROWS
    actual = in_range.limit(rows_max + 1).toArrow()
    if actual.num_rows <= rows_max:
        wrong = differences(expected, actual, columns, at)
        return ChunkComparison(wrong, unconverted, is_whole=True)
    keys = in_range.select(*(identifier(column.name) for column in columns if column.is_key))
    wrong = vanished(expected, keys.limit(_KEYS_MAX).toArrow(), columns, at)
    return ChunkComparison(wrong, unconverted, is_whole=False)


def _values(array: Any) -> list[Any]:
    return [value for value in array or () if value is not None]


def first_key_range(chunk: Chunk) -> RowRange | None:
    """Return the values of the key's first column in a chunk; None if they have another order."""
    first = chunk.key[0] if chunk.key else ""
    types = {column.name: column.spanner_type for column in chunk.columns}
    if first in chunk.descending or not types.get(first, "").startswith(_ORDERED):
        return None
    limits = (None if key is None else key[0] for key in (chunk.after, chunk.through))
    is_number = types[first] == _NUMBER
    least, greatest = (int(v) if is_number and v is not None else v for v in limits)
    return RowRange(first, least, greatest)


def _in_range(rows: DataFrame, chunk: Chunk, columns: Sequence[Column]) -> DataFrame:
    """Return the mirror's rows in the chunk's range of keys, in the columns of its table."""
    ddl = ", ".join(f"{identifier(column.name)} {column.spark_type}" for column in columns)
    order = SortOrder.of(columns, chunk.key, chunk.descending)
    after, through = (
        None if key is None else dict(zip(chunk.key, key, strict=True))
        for key in (chunk.after, chunk.through)
    )
    # It is typed as any DataType.
    schema = cast(StructType, StructType.fromDDL(ddl))
    return conformed(rows, schema).where(range_condition(order, after, through))
