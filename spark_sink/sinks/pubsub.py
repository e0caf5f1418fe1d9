"""The settings of Google's Pub/Sub: at least once, with UUIDs that are the same on a replay."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Final, Self

from pydantic import Field, model_validator

from slackwater.endpoint import Endpoint, or_emulator
from slackwater.setting_values import EmptyIsNone
from slackwater.spark_sink.avro.schemas import TableSchema
from slackwater.spark_sink.envelopes.envelope import Envelope, Origin, table_topic
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.errors import TableNameError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import AVRO, JSON
from slackwater.spark_sink.messaging.topics import Topics
from slackwater.spark_sink.pubsub.ordering import Ordering
from slackwater.spark_sink.sinks.message_settings import MessageSettings
from slackwater.spark_sink.sinks.message_sink import MessageSink
from slackwater.spark_sink.sql.columns import Column

if TYPE_CHECKING:
    from slackwater.spark_sink.pubsub.service import Service
    from slackwater.spark_sink.pubsub.topic_messages import TopicMessages

_HOST: Final = "pubsub.googleapis.com"
_EMULATOR_VARIABLE: Final = "PUBSUB_EMULATOR_HOST"
# No schema depends on it.
_NO_ORIGIN: Final = Origin("", "", "", "", "")
# https://cloud.google.com/pubsub/docs/pubsub-basics#resource_names
_NAME: Final = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}")


@dataclass(frozen=True, slots=True)
class PubSubTopics(Topics):
    """The topics that messages go to."""

    def require_own(self, tables: Iterable[str], written: Iterable[str] = ()) -> None:
        """Refuse tables without topics of their own, or with names that no topic can have."""
        tables = list(tables)
        super(PubSubTopics, self).require_own(tables, written)
        for table in tables:
            topic = table_topic(self.changes, table)
            if not _NAME.fullmatch(topic):
                raise TableNameError(
                    f"{topic!r} can't be a topic of Pub/Sub: a name begins with a letter, but not"
                    " with goog, and has 3 to 255 letters, digits and -._~+%.",
                    "Set sink.topic, such as spanner-{table}",
                )


class PubSubSettings(MessageSettings):
    """The settings of Pub/Sub.

    Attributes:
        project: that has the topics.
        endpoint: HOST or HOST:PORT of a region's endpoint; None for the service's.
        ordering: messages that share a table and key, or a table, are delivered in order; None for
            key where the envelope has keys, otherwise for none.
        requests: how many a task has under way at once.
        batch_messages: how many a request has at most.
        compression: requests are sent with gzip.
    """

    formats = (JSON, AVRO)

    kind: str = "pubsub"
    project: Annotated[str, Field(pattern=r"^[a-z0-9.:-]+$")]
    endpoint: Annotated[str | None, EmptyIsNone] = None
    ordering: Ordering | None = None
    requests: Annotated[int, Field(ge=1, le=100)] = 4
    batch_messages: Annotated[int, Field(ge=1, le=1_000)] = 1_000
    compression: bool = False

    @property
    def topics(self) -> PubSubTopics:
        """Where messages go."""
        return PubSubTopics(self.topic, self.watermarks_topic, self.resolved)

    def service(self, environ: Mapping[str, str] = os.environ) -> Service:
        """Return Pub/Sub, or its emulator if the environment names one."""
        # With Google's client, which is not installed without the extra pubsub.
        from slackwater.spark_sink.pubsub.service import Service

        endpoint = or_emulator(Endpoint(self.endpoint), environ, _EMULATOR_VARIABLE)
        if endpoint.host is None:
            endpoint = Endpoint(_HOST)
        return Service(self.project, endpoint, self.compression)

    def make_sink(self, origin: Origin, record_filter: RecordFilter) -> MessageSink:
        """Return the sink; see SinkSettings."""
        from slackwater.spark_sink.pubsub.publisher import Publisher
        from slackwater.spark_sink.pubsub.pubsub_delivery import PubSubDelivery

        place, has_key = self.make_place(), envelopes()[self.envelope].has_key
        publisher = Publisher(
            self.service(),
            self.ordering or ("key" if has_key else "none"),
            self.requests,
            self.batch_messages,
            stops=self.bad_records == "stop",
        )
        return MessageSink(
            place,
            origin.pipeline,
            self.topics,
            self.make_envelope(origin),
            [PubSubDelivery(publisher, place)],
            record_filter,
            self._avro_messages(origin) if self.format == AVRO else None,
            has_uuid=True,
        )

    def _avro_messages(self, origin: Origin) -> TopicMessages:
        from slackwater.spark_sink.pubsub.topic_messages import TopicMessages

        sets_aside = self.bad_records == "dead_letter"
        return TopicMessages(self.make_envelope(origin), self.service(), sets_aside=sets_aside)

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope; a message has no key beside its value."""
        envelope = super().make_envelope(origin)
        options = replace(envelope.options, key_in_value=True, is_value_alone=True)
        return replace(envelope, options=options)

    def check(self) -> None:
        """Ask for the topics of JSON whose names are known; see SinkSettings."""
        super().check()
        service, topics = self.service(), self.topics
        is_known = not topics.has_one_per_table and self.format == JSON
        for topic in (topics.watermarks, topics.changes if is_known else None):
            if topic is not None:
                service.require_topic(topic)

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Ask also for each table's topic; see SinkSettings."""
        super().check_tables(tables)
        if self.format == AVRO:
            avro = self._avro_messages(_NO_ORIGIN)
            for table, columns in tables.items():
                topic = table_topic(self.topic, table)
                avro.require_schema(TableSchema.of_columns(topic, table, columns))
        elif self.topics.has_one_per_table:
            service = self.service()
            for table in tables:
                service.require_topic(table_topic(self.topic, table))

    @model_validator(mode="after")
    def _key_of_envelope(self) -> Self:
        if self.ordering == "key" and not envelopes()[self.envelope].has_key:
            raise ValueError(
                f"ordering key goes with an envelope whose messages have a key, not {self.envelope}"
            )
        return self

    @model_validator(mode="after")
    def _topic_of_schema(self) -> Self:
        has_one_schema = not envelopes()[self.envelope].has_key
        if self.format == AVRO and not (self.topics.has_one_per_table or has_one_schema):
            raise ValueError(
                "a topic has one schema, and each table another: format avro goes with a topic for"
                " each table, such as spanner-{table}, or with envelope record"
            )
        return self

    @model_validator(mode="after")
    def _endpoint_is_a_host(self) -> Self:
        Endpoint(self.endpoint or _HOST)
        return self
