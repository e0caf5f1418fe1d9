"""The topics that messages go to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

from slackwater.spark_sink.envelopes.envelope import TABLE, table_topic
from slackwater.spark_sink.errors import TableNameError
from slackwater.spark_sink.table_names import plain_names, table_of

if TYPE_CHECKING:
    from pyspark.sql import Column

    from slackwater.spark_sink.output.epoch_place import EpochPlace

FOLDER: Final = "_topics"
# A topic's name may begin with a mark by which a file is hidden.
_PREFIX: Final = "topic-"


class WrittenTopics:
    """The names of topics that messages went to: only they get the pipeline's resolved messages.

    A topic's name does not show its owner: a cluster has topics of others, and the setting
    `topic: "{table}"` could mean any of them. Each is an empty file, because no process may forget
    one.

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


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that messages go to.

    Attributes:
        changes: the topic's name; TABLE in it stands for the table's full name.
        watermarks: the topic of low watermarks; None for none.
        resolved_ms: the least milliseconds between two resolved messages; None to send none.
        heartbeats: the topic of heartbeats; None to send none.
        why_one: the end of a sentence that says why two topics can't be beside each other.
    """

    why_one: ClassVar[str] = ""

    changes: str
    watermarks: str | None
    resolved_ms: int | None
    heartbeats: str | None = None

    @property
    def has_one_per_table(self) -> bool:
        """Whether each table has its own topic."""
        return TABLE in self.changes

    def of_changes(self) -> Column:
        """Return the topic of a row with table_name."""
        from pyspark.sql import functions as F

        topic = F.lit(self.changes)
        if not self.has_one_per_table:
            return topic
        return F.replace(topic, F.lit(TABLE), plain_names(F.col("table_name")))

    def require_own(self, tables: Iterable[str], written: Iterable[str] = ()) -> None:
        """Refuse tables without topics of their own.

        Args:
            tables: their full names.
            written: further topics, of tables that changes were sent of before.

        Raises:
            TableNameError: two topics are one, one is that of low watermarks, or a table's name can
                be no topic's.
        """
        if not self.has_one_per_table:
            return
        made = (table_topic(self.changes, table) for table in sorted(tables))
        taken = {self.identity_of(name): "" for name in (self.watermarks, self.heartbeats) if name}
        for topic in (*sorted(written), *made):
            other = taken.setdefault(self.identity_of(topic), topic)
            if other != topic:
                whose = f"topic {other} of table {self._table(other)!r}"
                raise TableNameError(
                    f"topic {topic} of table {self._table(topic)!r} can't be beside the"
                    f" {whose if other else self._own_topics}"
                    f"{self.why_one}.",
                    "Leave a table out with filter.exclude_tables, rename it, or choose another"
                    f" {'sink.topic' if other else self._own_topics}",
                )

    @staticmethod
    def identity_of(topic: str) -> str:
        """Return a text that topics share which can't be beside each other."""
        return topic

    @property
    def _own_topics(self) -> str:
        """The topics that are of no table, as the settings name them."""
        named = {"watermarks_topic": self.watermarks, "heartbeats_topic": self.heartbeats}
        return " or ".join(f"sink.{name} {topic}" for name, topic in named.items() if topic)

    def table_of(self, topic: str) -> str | None:
        """Return the full name of the table that a topic is of; None if tables share it."""
        if not self.has_one_per_table:
            return None
        before, _, after = self.changes.partition(TABLE)
        return table_of(topic.removeprefix(before).removesuffix(after))

    def _table(self, topic: str) -> str:
        """Return the table of a topic, or its name if it is not known."""
        return self.table_of(topic) or topic
