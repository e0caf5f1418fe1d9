"""From the settings to the sink that they name."""

from __future__ import annotations

from slackwater.settings import Settings
from spark_sink.changelog import Changelog
from spark_sink.envelopes.envelope import Envelope, Wrapping
from spark_sink.envelopes.message import Origin
from spark_sink.filters import Filter
from spark_sink.kafka import Kafka, Topics
from spark_sink.mirror import Mirrors
from spark_sink.sink import Sink


def make_sink(settings: Settings) -> Sink:
    """The sink; nothing is written yet."""
    given = settings.sink
    kept = Filter(**settings.filter.model_dump())
    match given.kind:
        case "mirror":
            return Mirrors(
                given.path,
                settings.pipeline,
                kept,
                keeps_deleted=given.deletes == "mark",
                properties=given.table_properties,
                keeps_bad_records=given.bad_records == "dead_letter",
            )
        case "kafka":
            topics = Topics(given.topic, given.watermarks_topic, given.resolved, given.options)
            return Kafka(given.path, settings.pipeline, topics, _wrapping(settings), kept)
        case _:
            is_plain = given.envelope is Envelope.RECORD
            wrapping = None if is_plain else _wrapping(settings)
            return Changelog(given.path, given.format, settings.pipeline, kept, wrapping)


def _wrapping(settings: Settings) -> Wrapping:
    source, sink = settings.source, settings.sink
    origin = Origin(
        settings.pipeline, source.project, source.instance, source.database, source.change_stream
    )
    return Wrapping(sink.envelope, origin, sink.updated, sink.mvcc_timestamp)
