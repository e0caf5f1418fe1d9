"""A range of values of one column, by which files and parts of them are skipped."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RowRange:
    """One range. Rows without a value are in any range.

    Attributes:
        column: the column's name.
        least, greatest: numbers or texts, inclusive; None for no limit.
    """

    column: str
    least: int | str | None
    greatest: int | str | None

    def may_have(self, least: Any, greatest: Any, nulls: int | None) -> bool:
        """Return whether rows of which the bounds are known may be in the range.

        Args:
            least, greatest: the bounds; None if they are not known.
            nulls: how many rows have no value; None if that is not known.
        """
        limits = [limit for limit in (self.least, self.greatest) if limit is not None]
        kinds = {type(value) for value in (*limits, least, greatest)}
        if nulls != 0 or len(kinds) > 1:
            return True
        if self.least is not None and greatest < self.least:
            return False
        return self.greatest is None or least <= self.greatest
