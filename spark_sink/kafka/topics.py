"""Kafka's topics, and the settings of its clients."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

from slackwater.spark_sink.messaging.topics import Topics

# An option of Spark's Kafka sink with this prefix is a setting of Kafka's client.
CLIENT_PREFIX: Final = "kafka."
SERVERS: Final = "kafka.bootstrap.servers"


@dataclass(frozen=True, slots=True)
class KafkaTopics(Topics):
    """The topics that messages go to.

    Attributes:
        options: of Spark's Kafka sink: kafka.bootstrap.servers and others.
    """

    why_one: ClassVar[str] = ": Kafka makes no two topics whose names differ in . and _ alone"

    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def client_settings(self) -> dict[str, str]:
        """The settings of Kafka's Java client among the options."""
        return {
            name.removeprefix(CLIENT_PREFIX): value
            for name, value in self.options.items()
            if name.startswith(CLIENT_PREFIX)
        }

    @staticmethod
    def identity_of(topic: str) -> str:
        """Return the name under which Kafka measures a topic: of two with one it makes one."""
        return topic.replace(".", "_")
