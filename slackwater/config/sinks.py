"""The sink that the settings describe."""

from dataclasses import replace

from slackwater.config.filters import filter_of
from slackwater.config.settings import BigtableSource, Settings, Source
from slackwater.spark_sink.envelopes.envelope import Origin
from slackwater.spark_sink.sink import Sink


def make_sink(settings: Settings) -> Sink:
    """Return the sink of a pipeline; nothing is written yet."""
    source = settings.source
    origin = Origin(settings.pipeline, source.project, source.instance)
    if isinstance(source, Source):
        names = {"database": source.database, "change_stream": source.change_stream}
        origin = replace(origin, **names)
    elif isinstance(source, BigtableSource):
        origin = replace(origin, table=source.table)
    return settings.sink.make_sink(origin, filter_of(settings))
