"""The protocol of a way in which a pipeline's messages reach a service for messages."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from slackwater.spark_sink.sink import OutputPosition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class Mark:
    """Where an epoch, or a chunk of an initial scan, ends.

    Attributes:
        low_watermark: in whole microseconds.
        epoch_id: Spark's number of the micro-batch; None for a scan.
        chunk: the chunk's number in a scan; None for an epoch, and for the scan as a whole.
        is_small: its messages are so few and short that the driver may hold them.
    """

    low_watermark: datetime
    epoch_id: int | None = None
    chunk: int | None = None
    is_small: bool = False


@dataclass(frozen=True, slots=True)
class ClosingMessage:
    """A message that says something of all messages before it: a resolved one, or a low watermark.

    Attributes:
        topic: its topic.
        partition: its partition; None for that of its key. Without partitions it is 0.
        key: None if it has none.
        value: its value.
        headers: names and values.
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes
    headers: tuple[tuple[str, bytes], ...] = ()


class Delivery(Protocol):
    """A way in which messages reach a service."""

    def send(self, message_rows: DataFrame, changes: DataFrame, mark: Mark) -> Collection[str]:
        """Send the messages of an epoch or chunk, in order for each key; return their topics.

        Args:
            message_rows: rows with topic, key, value, table_name and the columns ORDER and
                ROW_HASH of message_rows; HEADERS if they have some.
            changes: the records that they were made of, with their topic.
            mark: where they end.

        Raises:
            MessageRefusedError: the service refuses one of them.
            PublishError: the service can't be reached, or another process sends.
        """

    def close(self, spark: SparkSession, messages: Sequence[ClosingMessage], mark: Mark) -> None:
        """Send the messages that close all messages up to a mark, and note that these are complete.

        Args:
            spark: the session.
            messages: may be empty.
            mark: where the epoch ends.

        Raises:
            MessageRefusedError, PublishError: as send() does.
        """

    def partition_counts(self, spark: SparkSession, topics: Collection[str]) -> dict[str, int]:
        """Return how many resolved messages each topic needs; a deleted topic is left out.

        That is the number of its partitions, where it has some.
        """

    def position(self, spark: SparkSession) -> OutputPosition | None:
        """Return the position of the output; None if the service does not hold it."""
