"""How large a mirror may be for its files to be read and written again for a few changes."""

from __future__ import annotations

from typing import Final

# In bytes, compressed.
BYTES_MAX: Final = 128 << 20
ROWS_MAX: Final = 2_000_000
# A merge looks at each file, or writes it to a list of files: of so many it makes one.
FILES_MAX: Final = 50
# The same in an object store, where each file takes two requests or more.
OBJECTS_MAX: Final = 8


def reason_against(size: int, rows: int) -> str | None:
    """Return why a table is too large; None if it is not.

    Args:
        size: of its files, in bytes.
        rows: their number.
    """
    if size > BYTES_MAX:
        return f"it has more than {BYTES_MAX >> 20} MiB"
    return f"it has more than {ROWS_MAX:,} rows" if rows > ROWS_MAX else None
