"""The topics that a pipeline has written to: only they get its resolved messages.

A topic's name does not show its owner: a cluster has topics of others, and the setting
`topic: "{table}"` could mean any of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.messaging.topics import Topics

if TYPE_CHECKING:
    from slackwater.spark_sink.output.epoch_place import EpochPlace

FOLDER: Final = "_topics"
# A topic's name may begin with a mark by which a file is hidden.
_PREFIX: Final = "topic-"


class WrittenTopics:
    """The names of the topics, each as an empty file, because no process may forget one.

    Args:
        place: the sink's.
    """

    def __init__(self, place: EpochPlace) -> None:
        self._files = place.folder(FOLDER)
        self._known_names: set[str] = set()
        self._known_tables: set[str] = set()

    def add(self, names: Collection[str]) -> None:
        """Add topics that messages were sent to; those that are known cost nothing."""
        for name in sorted(set(names) - self._known_names):
            self._files.create(f"{_PREFIX}{name}", "")
            self._known_names.add(name)

    def require_own(self, topics: Topics, tables: Collection[str]) -> None:
        """Refuse tables new to this process whose topics others have; see Topics.

        Raises:
            TableNameError: there is one.
        """
        if not self._known_tables.issuperset(tables):
            topics.require_own({*tables, *self._known_tables}, self.names())
            self._known_tables.update(tables)

    def names(self) -> frozenset[str]:
        """Return the names of all topics that were added, by any process."""
        names = self._files.names()
        return frozenset(n.removeprefix(_PREFIX) for n in names if n.startswith(_PREFIX))
