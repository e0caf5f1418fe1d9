"""The rows that a rescan reads between two epochs, so few that no epoch is delayed much."""

from typing import Final

FIRST_ROWS: Final = 1_000
_ROWS_MIN: Final = 250
_ROWS_MAX: Final = 16_000
# A chunk takes longer than the shorter one mostly by its fixed cost, which fewer rows do not lower.
_SHORT_S: Final = 0.7
_LONG_S: Final = 1.2


def next_rows(rows: int, seconds: float) -> int:
    """Return the limit of the next chunk's rows.

    Args:
        rows: the limit of the last chunk.
        seconds: how long it took to be read and compared.
    """
    if seconds < _SHORT_S:
        return min(_ROWS_MAX, rows * 2)
    return max(_ROWS_MIN, rows // 2) if seconds > _LONG_S else rows
