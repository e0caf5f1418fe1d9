"""The settings of kinds that send messages."""

from abc import ABC
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from slackwater.setting_values import Duration
from slackwater.spark_sink.envelopes.changefeed import ENRICHED, SCHEMA
from slackwater.spark_sink.envelopes.envelope import TABLE, Envelope, Origin, require_whole_rows
from slackwater.spark_sink.envelopes.event import WITH_OLD_VALUES
from slackwater.spark_sink.envelopes.registry import envelopes, with_changefeed_options
from slackwater.spark_sink.errors import PartialRowError
from slackwater.spark_sink.formats import AVRO, JSON
from slackwater.spark_sink.messaging.topics import Topics
from slackwater.spark_sink.sinks.envelope_settings import EnvelopeName, EnvelopeSettings
from slackwater.spark_sink.sql.columns import Column


class MessageSettings(EnvelopeSettings, ABC):
    """The settings of kinds that send messages.

    Attributes:
        topic: the topic's name; {table} in it stands for the table's full name.
        watermarks_topic: the topic of low watermarks; None for none.
        resolved: the least milliseconds between two resolved messages; None for none of them.
        topic_in_value, diff, schemas_enable: see EnvelopeOptions.
        bad_records: stop at a message that the service refuses, or set its record aside.
    """

    format: str = JSON
    envelope: EnvelopeName = "wrapped"
    topic: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]|\{table\})+$")] = TABLE
    watermarks_topic: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    resolved: Annotated[int, Duration()] | None = None
    topic_in_value: bool = False
    diff: bool = False
    schemas_enable: bool = False
    bad_records: Literal["stop", "dead_letter"] = "stop"

    @property
    def topics(self) -> Topics:
        """Where messages go."""
        return Topics(self.topic, self.watermarks_topic, self.resolved)

    @property
    def is_strict(self) -> bool:
        """Whether columns that a record lacks are null, as Debezium's connector says."""
        return False

    @property
    def in_value(self) -> bool:
        """Whether the settings ask for more in a value than the envelope has."""
        return self.topic_in_value

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope, with the options that only messages have."""
        envelope = super().make_envelope(origin)
        options = replace(
            envelope.options,
            topic=self.topic if self.topic_in_value else None,
            diff=self.diff,
            schemas_enable=self.schemas_enable,
        )
        return replace(envelope, options=options)

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Refuse tables without a topic of their own; see SinkSettings."""
        self.topics.require_own(tables)

    def check_capture_type(self, capture_type: str) -> None:
        """Check that rows will be whole where a part of one looks whole; see SinkSettings."""
        is_avro = self.format == AVRO and not self.is_strict
        require_whole_rows(capture_type, envelopes()[self.envelope], is_avro=is_avro)
        if self.diff and capture_type != WITH_OLD_VALUES:
            raise PartialRowError(
                f"changes of value capture type {capture_type} lack the row before the change,"
                " which sink.diff adds.",
                f"Let the change stream capture it (value_capture_type = '{WITH_OLD_VALUES}')",
            )

    @model_validator(mode="before")
    @classmethod
    def _staging_path(cls, values: Any) -> Any:
        """Set path, where epochs wait for their audit, unless the settings do."""
        if not isinstance(values, dict):
            return values
        return {"path": f"{values.get('checkpoint')}-staging", **values}

    @model_validator(mode="after")
    def _options_of_envelope(self) -> Self:
        names = with_changefeed_options()
        if self.in_value and (self.envelope not in names or self.format != JSON):
            raise ValueError(
                f"key_in_value and topic_in_value go with envelope {', '.join(names)} in"
                " format json"
            )
        if self.diff and self.envelope not in ("wrapped", ENRICHED):
            raise ValueError("diff goes with envelope wrapped or enriched")
        if self.schemas_enable and (self.envelope != "debezium" or self.format != JSON):
            raise ValueError("schemas_enable goes with envelope debezium in format json")
        return self

    @model_validator(mode="after")
    def _options_of_json(self) -> Self:
        if self.format == AVRO and SCHEMA in self.enriched_properties:
            raise ValueError("enriched_properties schema goes with format json: Avro has schemas")
        if self.format == AVRO and self.encode_json_value_null_as_object:
            raise ValueError(
                "encode_json_value_null_as_object goes with format json: in Avro a JSON is a text"
            )
        return self
