"""The sink that the settings describe."""

from __future__ import annotations

from slackwater.config.filters import filter_of
from slackwater.config.settings import Settings, Source
from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.sink import Sink


def make_sink(settings: Settings) -> Sink:
    """Return the sink of a pipeline; nothing is written yet."""
    source = settings.source
    names = (source.project, source.instance)
    if isinstance(source, Source):
        origin = Origin(settings.pipeline, *names, source.database, source.change_stream)
    else:
        origin = Origin(settings.pipeline, *names, "", source.table)
    return settings.sink.make_sink(origin, filter_of(settings))
