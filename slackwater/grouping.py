"""Items in groups of a limited size, as for a request, a row group or a batch."""

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def groups_by_size(
    items: Iterable[T], size_of: Callable[[T], int], size_max: int
) -> Iterator[list[T]]:
    """Yield items that follow each other in groups, none of which is empty.

    Args:
        items: read one after the other, as the groups are taken.
        size_of: returns the size of an item.
        size_max: of a group; a larger item is alone.
    """
    group: list[T] = []
    size = 0
    for item in items:
        item_size = size_of(item)
        if group and size + item_size > size_max:
            yield group
            group, size = [], 0
        group.append(item)
        size += item_size
    if group:
        yield group
