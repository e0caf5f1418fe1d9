"""From the settings to the sink that they name."""

from __future__ import annotations

from slackwater.settings import Settings
from spark_sink.changelog import Changelog
from spark_sink.filters import Filter
from spark_sink.mirror import Mirrors
from spark_sink.sink import Sink


def make_sink(settings: Settings) -> Sink:
    """The sink; nothing is written yet."""
    given = settings.sink
    kept = Filter(**settings.filter.model_dump())
    if given.kind == "mirror":
        return Mirrors(
            given.path,
            settings.pipeline,
            kept,
            keeps_deleted=given.deletes == "mark",
            properties=given.table_properties,
        )
    return Changelog(given.path, given.format, settings.pipeline, kept)
