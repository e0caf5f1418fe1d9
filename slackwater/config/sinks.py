"""The sink that the settings describe."""

from __future__ import annotations

from slackwater.config.filters import filter_of
from slackwater.config.settings import Settings
from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.sink import Sink


def make_sink(settings: Settings) -> Sink:
    """Return the sink of a pipeline; nothing is written yet."""
    source = settings.source
    origin = Origin(
        settings.pipeline, source.project, source.instance, source.database, source.change_stream
    )
    return settings.sink.make_sink(origin, filter_of(settings))
