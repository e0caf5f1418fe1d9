"""Messages with a schema: an epoch's records in an envelope, as rows in Spark."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Final, Protocol

from pyspark.sql import Column, DataFrame

from slackwater.spark_sink.avro.schemas import TableSchema
from slackwater.spark_sink.avro.wire_format import for_avro
from slackwater.spark_sink.envelopes.envelope import Envelope, MessageBody, require_whole_rows
from slackwater.spark_sink.envelopes.event import Row
from slackwater.spark_sink.message_rows import MessageRows

# The column with the topic of each record.
_TOPIC: Final = "topic"


class Encoder(Protocol):
    """An encoder of messages, which Spark's tasks get from the driver."""

    def messages(self, record: Row, topic: str) -> Iterator[tuple[Any, bytes | None]]:
        """Yield the keys and values of a record's messages.

        Args:
            record: a row of the output's contract, timestamps as datetime in UTC.
            topic: their topic.

        Raises:
            ValueError: a mod's JSON can't be parsed, or a value is not of its type.
        """


class EncodedMessages(ABC):
    """A maker of an epoch's messages; the driver looks their schemas up.

    Args:
        envelope: of the messages.

    Attributes:
        key_type: Spark's type of keys.
    """

    key_type: ClassVar[str] = "binary"

    def __init__(self, envelope: Envelope) -> None:
        self.envelope = for_avro(envelope)

    def messages(self, changes: DataFrame, topic: Column, *, has_uuid: bool = False) -> DataFrame:
        """Return a row for each message, as messages() with ROW_HASH; the value is binary.

        Args:
            changes: rows of the output's contract.
            topic: the topic of each.
            has_uuid: see MessageRows.

        Raises:
            PartialRowError: an update lacks the whole row.
            SchemaRefusedError, PublishError, SinkError: see encoder().
        """
        changes = changes.withColumn(_TOPIC, topic)
        schema_columns = changes.select(_TOPIC, "table_name", "column_types", "value_capture_type")
        schemas = set()
        for row in schema_columns.distinct().collect():
            require_whole_rows(
                row["value_capture_type"], self.envelope, is_avro=not self.envelope.options.strict
            )
            schemas.add(TableSchema.of(row[_TOPIC], row["table_name"], row["column_types"]))
        return MessageRows(
            self.envelope,
            _wrap(self.encoder(schemas)),
            (self.key_type, "binary"),
            has_row_hash=True,
            has_uuid=has_uuid,
        ).frame(changes)

    @abstractmethod
    def encoder(self, schemas: Collection[TableSchema]) -> Encoder:
        """Return the encoder of messages of tables that have had such columns.

        Raises:
            SchemaRefusedError: a schema is rejected.
            PublishError: the place of schemas can't be reached.
        """

    def use(self, envelope: Envelope) -> None:
        """Replace the envelope by one that has learned more of the tables."""
        self.envelope = for_avro(envelope)

    def heartbeat(self, topic: str, beat: MessageBody) -> tuple[bytes, bytes]:
        """Return the key and the value of a heartbeat.

        Raises:
            SchemaRefusedError, PublishError: as encoder().
        """
        raise NotImplementedError

    @abstractmethod
    def resolved(self, topic: str, value: Mapping[str, Any], table: str | None = None) -> bytes:
        """Return the resolved message of a topic.

        Args:
            topic: its name.
            value: of the message.
            table: the full name of the table that the topic is of; None if tables share it.

        Raises:
            SchemaRefusedError, PublishError: as encoder().
        """


def _wrap(encoder: Encoder) -> Callable[[Mapping[str, Any]], list[tuple[Any, ...]]]:
    def wrap(record: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        plain = {name: value for name, value in record.items() if name != _TOPIC}
        messages = encoder.messages(plain, record[_TOPIC])
        return [(record["table_name"], key, value) for key, value in messages]

    return wrap
