"""The settings of kinds that write changes in an envelope."""

from abc import ABC
from typing import Annotated, Self

from pydantic import BeforeValidator, model_validator

from slackwater.setting_values import listed
from slackwater.spark_sink.envelopes.changefeed import ENRICHED, SOURCE, EnrichedProperty
from slackwater.spark_sink.envelopes.envelope import Envelope, EnvelopeOptions, Origin
from slackwater.spark_sink.envelopes.flat import Flat
from slackwater.spark_sink.envelopes.registry import (
    DEFAULT_ENVELOPE,
    envelopes,
    with_changefeed_options,
)
from slackwater.spark_sink.formats import AVRO
from slackwater.spark_sink.sinks.sink_settings import SinkSettings, one_of


def _envelope_name(value: object) -> object:
    return one_of(value, list(envelopes()))


EnvelopeName = Annotated[str, BeforeValidator(_envelope_name)]


class EnvelopeSettings(SinkSettings, ABC):
    """The settings of kinds that write changes in an envelope.

    Attributes:
        envelope: its name.
        updated, mvcc_timestamp, enriched_properties, encode_json_value_null_as_object: see
            EnvelopeOptions.
    """

    envelope: EnvelopeName = DEFAULT_ENVELOPE
    updated: bool = False
    mvcc_timestamp: bool = False
    enriched_properties: Annotated[tuple[EnrichedProperty, ...], BeforeValidator(listed)] = ()
    encode_json_value_null_as_object: bool = False

    @property
    def takes_parts_of_rows(self) -> bool:
        """Whether the envelope shows which columns it has; see SinkSettings."""
        is_read_by_name = self.envelope == Flat.name and self.format != AVRO
        return is_read_by_name or not envelopes()[self.envelope].needs_whole_rows

    def make_envelope(self, origin: Origin) -> Envelope:
        """Return the envelope."""
        options = EnvelopeOptions(
            origin,
            self.updated,
            self.mvcc_timestamp,
            enriched_properties=self.enriched_properties,
            sink=self.kind,
            encode_json_value_null_as_object=self.encode_json_value_null_as_object,
        )
        return envelopes()[self.envelope](options)

    def make_envelope_or_none(self, origin: Origin) -> Envelope | None:
        """Return the envelope; None for record, whose rows are written as they are."""
        return None if self.envelope == "record" else self.make_envelope(origin)

    @model_validator(mode="after")
    def _timestamps_of_envelope(self) -> Self:
        names = with_changefeed_options()
        has_timestamp = self.updated or self.mvcc_timestamp
        if self.envelope not in names and has_timestamp:
            raise ValueError(
                f"updated and mvcc_timestamp go with envelope {', '.join(names)}; the others"
                " have the commit timestamp, or none"
            )
        if self.envelope == ENRICHED and has_timestamp and SOURCE not in self.enriched_properties:
            raise ValueError(
                "with envelope enriched updated and mvcc_timestamp are fields of source: they go"
                " with enriched_properties source"
            )
        return self

    @model_validator(mode="after")
    def _changefeed_options_of_envelope(self) -> Self:
        if self.enriched_properties and self.envelope != ENRICHED:
            raise ValueError("enriched_properties goes with envelope enriched")
        names = with_changefeed_options()
        if self.encode_json_value_null_as_object and self.envelope not in names:
            raise ValueError(
                f"encode_json_value_null_as_object goes with envelope {', '.join(names)}"
            )
        return self
