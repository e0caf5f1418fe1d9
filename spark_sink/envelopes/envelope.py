"""Which envelope there is, and what it makes of a record."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, partial
from typing import Final

from slackwater.spark_sink.envelopes import changefeed, datastream, debezium, plain
from slackwater.spark_sink.envelopes.event import Event, Row, events
from slackwater.spark_sink.envelopes.message import Message, MessageBody, Origin
from slackwater.spark_sink.envelopes.values import TimestampFormat
from slackwater.timestamp import datetime_to_rfc3339


class Envelope(StrEnum):
    """The forms of a change, each with the name that its consumers know."""

    RECORD = "record"
    FLAT = "flat"
    WRAPPED = "wrapped"
    ROW = "row"
    KEY_ONLY = "key_only"
    DATASTREAM = "datastream"
    DEBEZIUM = "debezium"


# Those that can have updated and mvcc_timestamp.
WITH_TIMESTAMP_OPTIONS: Final = (Envelope.WRAPPED, Envelope.ROW)
# Those whose values have columns alone: what resolved messages say stands apart from them.
RESOLVED_UNDER_METADATA_KEY: Final = (Envelope.ROW, Envelope.KEY_ONLY)


@dataclass(frozen=True)
class EnvelopeOptions:
    """An envelope and its options.

    Attributes:
        envelope: which.
        origin: what the messages name as their source.
        updated, mvcc_timestamp: add the commit timestamp under these names, as CockroachDB's
            changefeeds do; the other envelopes have it anyway.
        timestamp_format: what becomes of timestamps of the record.
    """

    envelope: Envelope
    origin: Origin
    updated: bool = False
    mvcc_timestamp: bool = False
    timestamp_format: TimestampFormat = datetime_to_rfc3339

    def messages(self, record: Row) -> Iterator[Message]:
        """What a data change record becomes: one message, or one for each of its mods.

        Args:
            record: a row of the output's contract, timestamps as datetime in UTC.

        Raises:
            ValueError: a mod's JSON can't be read.
        """
        if self.envelope is Envelope.RECORD:
            yield self.whole(record).as_json()
            return
        for event in events(record):
            yield self.content(event).as_json()

    def whole(self, record: Row) -> MessageBody:
        """What a data change record becomes in the envelope record."""
        return plain.record(record, timestamp_format=self.timestamp_format)

    def resolved(self, watermark_ns: int) -> MessageBody:
        """That no record at or before a low watermark will come any more."""
        if self.envelope in RESOLVED_UNDER_METADATA_KEY:
            return changefeed.resolved_under_metadata_key(watermark_ns)
        return changefeed.resolved(watermark_ns)

    @property
    def timestamp_names(self) -> list[str]:
        """The names under which the commit timestamp is added."""
        return [name for name in ("updated", "mvcc_timestamp") if getattr(self, name)]

    @cached_property
    def content(self) -> Callable[[Event], MessageBody]:
        """What an event becomes in the other envelopes."""
        timestamp_names = self.timestamp_names
        match self.envelope:
            case Envelope.WRAPPED:
                return partial(changefeed.wrapped, timestamp_names=timestamp_names)
            case Envelope.ROW:
                return partial(changefeed.row, timestamp_names=timestamp_names)
            case Envelope.KEY_ONLY:
                return changefeed.key_only
            case Envelope.DATASTREAM:
                return partial(
                    datastream.datastream,
                    origin=self.origin,
                    timestamp_format=self.timestamp_format,
                )
            case Envelope.DEBEZIUM:
                return partial(debezium.debezium, origin=self.origin)
            case _:
                return partial(plain.flat, timestamp_format=self.timestamp_format)
