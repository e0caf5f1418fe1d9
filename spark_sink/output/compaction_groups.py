"""The choice of a table's small files that become a large one."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from slackwater.grouping import groups_by_size

# In bytes: of the small files that become one.
_COMPACTED_SIZE: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class TableFile:
    """A file of a table.

    Attributes:
        name: relative to the table.
        size: in bytes.
        written: rises with the time at which it was written.
        partition: the values of the partition columns, as texts.
    """

    name: str
    size: int
    written: int
    partition: tuple[tuple[str, str | None], ...] = ()


def groups_to_compact(files: Iterable[TableFile]) -> list[list[TableFile]]:
    """Return the groups of files that become one: small ones of one partition, by age."""
    by_partition = defaultdict(list)
    for file in sorted(files, key=lambda file: (file.written, file.name)):
        if file.size < _COMPACTED_SIZE and is_inside(file.name):
            by_partition[file.partition].append(file)
    groups = (
        group
        for of_partition in by_partition.values()
        for group in groups_by_size(of_partition, lambda file: file.size, _COMPACTED_SIZE)
    )
    return [group for group in groups if len(group) > 1]


def is_inside(name: str) -> bool:
    """Return whether a file's name is relative to its table; those of a clone are another's."""
    return "://" not in name and not name.startswith(("/", "file:"))
