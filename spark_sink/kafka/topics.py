"""The topics that messages go to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.envelopes.message import TABLE, table_topic
from slackwater.spark_sink.errors import TableNameError
from slackwater.spark_sink.table_names import plain_names, table_of

if TYPE_CHECKING:
    from pyspark.sql import Column

# An option of Spark's Kafka sink with this prefix is a setting of Kafka's client.
CLIENT_PREFIX: Final = "kafka."
SERVERS: Final = "kafka.bootstrap.servers"


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that messages go to.

    Attributes:
        changes: the topic's name; TABLE in it stands for the table's full name.
        watermarks: the topic of low watermarks; None for none.
        resolved_ms: the least milliseconds between two resolved messages; None to send none.
        options: of Spark's Kafka sink: kafka.bootstrap.servers and others.
    """

    changes: str
    watermarks: str | None
    resolved_ms: int | None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_one_per_table(self) -> bool:
        """Whether each table has its own topic."""
        return TABLE in self.changes

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of Kafka's Java client among the options."""
        return {
            name.removeprefix(CLIENT_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(CLIENT_PREFIX)
        }

    def of_changes(self) -> Column:
        """Return the topic of a row with table_name."""
        from pyspark.sql import functions as F

        topic = F.lit(self.changes)
        if not self.has_one_per_table:
            return topic
        return F.replace(topic, F.lit(TABLE), plain_names(F.col("table_name")))

    def require_own(self, tables: Iterable[str], written: Iterable[str] = ()) -> None:
        """Refuse tables without topics of their own.

        Kafka makes no two topics whose names differ in . and _ alone: their metrics would be one.

        Args:
            tables: their full names.
            written: further topics, of tables that changes were sent of before.

        Raises:
            TableNameError: two topics are one, one is that of low watermarks, or a table's name is
                too long.
        """
        if not self.has_one_per_table:
            return
        made = (table_topic(self.changes, table) for table in sorted(tables))
        taken = {} if self.watermarks is None else {_metric(self.watermarks): ""}
        for topic in (*sorted(written), *made):
            other = taken.setdefault(_metric(topic), topic)
            if other != topic:
                whose = f"topic {other} of table {self._table(other)!r}"
                raise TableNameError(
                    f"topic {topic} of table {self._table(topic)!r} can't be beside the"
                    f" {whose if other else f'sink.watermarks_topic {self.watermarks}'}: Kafka"
                    " makes no two topics whose names differ in . and _ alone.",
                    "Leave a table out with filter.exclude_tables, rename it, or choose another"
                    f" {'sink.topic' if other else 'watermarks_topic'}",
                )

    def _table(self, topic: str) -> str:
        """Return the table of a topic, or its name if it is not known."""
        before, _, after = self.changes.partition(TABLE)
        return table_of(topic.removeprefix(before).removesuffix(after)) or topic


def _metric(topic: str) -> str:
    return topic.replace(".", "_")
