"""The topics that messages go to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from slackwater.spark_sink.envelopes.message import NOT_IN_TOPICS, TABLE

if TYPE_CHECKING:
    from pyspark.sql import Column

# An option of Spark's Kafka sink with this prefix is a setting of Kafka's client.
CLIENT_PREFIX: Final = "kafka."
SERVERS: Final = "kafka.bootstrap.servers"


def topic_name(name: str) -> str:
    """Return a name with other characters than a topic's written as _."""
    return NOT_IN_TOPICS.sub("_", name)


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
        return F.replace(
            topic, F.lit(TABLE), F.regexp_replace("table_name", NOT_IN_TOPICS.pattern, "_")
        )
