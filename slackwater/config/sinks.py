"""From the settings to the sink that they name."""

from __future__ import annotations

from slackwater.config.filters import filter_of
from slackwater.config.settings import Settings
from slackwater.spark_sink import formats
from slackwater.spark_sink.avro.messages import AvroMessages
from slackwater.spark_sink.avro.registry import SchemaRegistry
from slackwater.spark_sink.envelopes.envelope import Envelope, EnvelopeOptions
from slackwater.spark_sink.envelopes.message import Origin
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.sink import Sink
from slackwater.spark_sink.sinks.changelog import Changelog
from slackwater.spark_sink.sinks.kafka import Kafka, Topics
from slackwater.spark_sink.sinks.mirrors import Mirrors
from slackwater.spark_sink.sinks.spark_format import SparkFormat
from slackwater.spark_sink.sinks.typed_changelogs import TypedChangelogs
from slackwater.spark_sink.tables.delta import Delta
from slackwater.spark_sink.tables.iceberg import Iceberg
from slackwater.spark_sink.tables.table_format import TableFormat
from slackwater.timestamp import ms_to_seconds


def make_sink(settings: Settings) -> Sink:
    """The sink; nothing is written yet."""
    given = settings.sink
    record_filter = filter_of(settings)
    match given.kind:
        case "mirror":
            return Mirrors(
                given.path,
                settings.pipeline,
                table_format(settings) or Delta(),
                record_filter,
                keeps_deleted=given.deletes == "mark",
                properties=given.table_properties,
                keeps_bad_records=given.bad_records == "dead_letter",
                compact_every_s=_compact_every_s(settings),
            )
        case "changelogs":
            return TypedChangelogs(
                given.path,
                settings.pipeline,
                table_format(settings) or Delta(),
                record_filter,
                properties=given.table_properties,
                keeps_bad_records=given.bad_records == "dead_letter",
                compact_every_s=_compact_every_s(settings),
            )
        case "kafka":
            topics = Topics(given.topic, given.watermarks_topic, given.resolved, given.options)
            envelope, avro = _envelope(settings), None
            if given.confluent_schema_registry is not None:
                registry = SchemaRegistry(given.confluent_schema_registry)
                avro = AvroMessages(envelope, registry, by_table=not topics.are_of_tables)
            return Kafka(given.path, settings.pipeline, topics, envelope, record_filter, avro)
        case "spark":
            return SparkFormat(
                given.path, given.format, given.options, record_filter, _unless_plain(settings)
            )
        case _:
            return Changelog(
                given.path,
                given.format,
                settings.pipeline,
                record_filter,
                _unless_plain(settings),
                table_format(settings),
                partition_by=given.partition_by,
                compact_every_s=_compact_every_s(settings),
            )


def _compact_every_s(settings: Settings) -> float | None:
    every_ms = settings.sink.compact_every
    return None if every_ms is None else ms_to_seconds(every_ms)


def _unless_plain(settings: Settings) -> Envelope | None:
    return None if settings.sink.envelope == "record" else _envelope(settings)


def table_format(settings: Settings) -> TableFormat | None:
    """That of the settings; None where epochs are files."""
    match settings.sink.format:
        case formats.DELTA:
            return Delta(settings.sink.partition_by)
        case formats.ICEBERG:
            return Iceberg(settings.sink.catalog, settings.sink.partition_by)
    return None


def _envelope(settings: Settings) -> Envelope:
    source, sink = settings.source, settings.sink
    origin = Origin(
        settings.pipeline, source.project, source.instance, source.database, source.change_stream
    )
    options = EnvelopeOptions(origin, sink.updated, sink.mvcc_timestamp)
    return envelopes()[sink.envelope](options)
