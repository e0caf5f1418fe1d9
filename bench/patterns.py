"""Change streams of synthetic records, for programs that read or land them."""

from collections.abc import Iterator
from typing import Final

from slackwater.reader.change_stream import Dialect, PartitionMode
from tests.synthetic.rows import PatternRows, ProtoPatternRows
from tests.synthetic.script import Rows, Script, ScriptedPartition

START_US: Final = 1_769_850_000_000_000


def pattern_script(
    dialect: Dialect,
    mode: PartitionMode,
    partitions: int,
    records: int,
    every_us: int,
    rows_per_message: int,
) -> Script:
    """Return a change stream with all records in the past and no partition's end.

    Args:
        dialect: of the database.
        mode: the change stream's partition mode.
        partitions: how many.
        records: in all, spread evenly over the partitions.
        every_us: the time between two records of a partition.
        rows_per_message: as the server sends them.
    """

    def rows() -> Iterator[Rows]:
        for number in range(partitions):
            each = PatternRows(number, START_US, every_us, records // partitions, dialect=dialect)
            yield each if mode is PartitionMode.IMMUTABLE_KEY_RANGE else ProtoPatternRows(each)

    scripted = (
        ScriptedPartition(f"p{number}", START_US - 1_000_000, rows=each)
        for number, each in enumerate(rows())
    )
    return Script(dialect, tuple(scripted), rows_per_message, mode=mode)
