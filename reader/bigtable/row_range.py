"""Ranges of row keys, as Bigtable's partitions have them."""

from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Final, NamedTuple

_LABEL_CHARS_MAX: Final = 500


class RowRange(NamedTuple):
    """The row keys from a start up to an end.

    Attributes:
        start: the first key, inclusive; empty for the beginning of the table.
        end: exclusive; empty for the end of the table.
    """

    start: bytes
    end: bytes

    def __str__(self) -> str:
        """Return the range as a text that shows each byte that is not ASCII as its number."""
        start, end = (repr(key)[2:-1] for key in self)
        return f"[{start}, {end})"

    @property
    def label(self) -> str:
        """The range as a text; of long keys the beginning and a digest of all."""
        text = str(self)
        if len(text) <= _LABEL_CHARS_MAX:
            return text
        digest = sha256(text.encode()).hexdigest()[:16]
        return f"{text[: _LABEL_CHARS_MAX - 20]}... {digest}"

    def holds(self, other: "RowRange") -> bool:
        """Return whether all keys of another range are in this one."""
        is_before_end = not self.end or (bool(other.end) and other.end <= self.end)
        return self.start <= other.start and is_before_end


WHOLE_TABLE: Final = RowRange(b"", b"")


def are_parts(parts: Iterable[RowRange], whole: RowRange) -> bool:
    """Return whether ranges make up another one, without a hole and without a key twice."""
    ordered = sorted(parts)
    if not ordered:
        return False
    is_continued = all(one.end and one.end == other.start for one, other in pairwise(ordered))
    return is_continued and (ordered[0].start, ordered[-1].end) == whole
