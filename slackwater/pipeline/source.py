"""From the settings to the parts of a pipeline: what is asked of Spanner, the store and Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.pipeline.spark.checkpoint import last_offset
from slackwater.reader.database.change_stream_info import ChangeStreamInfo, read_change_stream_info
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.errors import CheckpointLostError, ForeignCheckpointError
from slackwater.scheduler.options import SourceOptions, parse_options
from slackwater.scheduler.start_position import check_start
from slackwater.spark_sink.avro.wire_format import require_whole_rows
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.sql.rebuild_view import DEFAULT_VALUE_CAPTURE_TYPE
from slackwater.timestamp import format_rfc3339, parse_rfc3339


def source_options(settings: Settings, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The options of the Spark source that the settings stand for."""
    source, epoch = settings.source, settings.epoch
    values = {
        "project": source.project,
        "instance": source.instance,
        "database": source.database,
        "change_stream": source.change_stream,
        "pipeline": settings.pipeline,
        "state_url": settings.state.url,
        "traces": None if settings.trace.endpoint is None else "true",
        "keep_seconds": str(settings.state.keep // 1_000),
        "start": source.start,
        "end": source.end,
        "max_span_seconds": str(epoch.max_span // 1_000),
        "target_records": str(epoch.target_records),
        "target_seconds": str(epoch.target_time // 1_000),
        "heartbeat_milliseconds": str(epoch.heartbeat),
        "concurrent_queries": str(epoch.concurrent_queries),
        "proof": epoch.proof,
        "audit": epoch.audit,
        "database_role": source.database_role,
        "priority": source.priority,
        "request_tag": source.request_tag,
        "directed_read": (
            json.dumps(source.directed_read.options()) if source.directed_read else None
        ),
        # Spark's executors may not have this program's environment.
        "emulator_host": environ.get("SPANNER_EMULATOR_HOST"),
    }
    return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class SourceHandle:
    """A change stream that was looked up and can be read."""

    connection: Connection
    description: ChangeStreamInfo
    options: SourceOptions


def connect(settings: Settings) -> SourceHandle:
    """Look the change stream up; nothing is written anywhere.

    Raises:
        ReaderError: it does not exist, may not be read or can't be reached.
    """
    options = parse_options(source_options(settings), os.environ)
    connection = Connection(options.change_stream)
    return SourceHandle(connection, read_change_stream_info(connection), options)


def check_new(settings: Settings, source: SourceHandle) -> None:
    """For a pipeline that has not started: that it can start where it shall.

    Raises:
        StartTooOldError, StartInFutureError: it can't.
        PartialRowError: the change stream does not capture what the sink needs.
    """
    if settings.sink.confluent_schema_registry is not None:
        capture = source.description.options.get("value_capture_type", DEFAULT_VALUE_CAPTURE_TYPE)
        envelope = envelopes()[settings.sink.envelope]
        require_whole_rows(capture, needs_whole_rows=envelope.needs_whole_rows)
    check_start(source.options, source.connection, source.description)


def resume_options(
    spark: SparkSession,
    settings: Settings,
    options: SourceOptions,
    *,
    last_watermark_ns: int | None,
    command: str,
) -> dict[str, str]:
    """What the checkpoint tells the source.

    Args:
        spark: reaches the checkpoint.
        settings: the pipeline's.
        options: what the settings stand for.
        last_watermark_ns: that of the last epoch known to be committed, None for none.
        command: the command line as far as the settings, for messages.

    Raises:
        ForeignCheckpointError: the checkpoint belongs to another pipeline or change stream.
        CheckpointLostError: the pipeline has committed epochs and the checkpoint is empty.
    """
    offset = last_offset(spark, settings.sink.checkpoint)
    if offset is None:
        if last_watermark_ns is not None:
            raise CheckpointLostError(
                settings.pipeline,
                format_rfc3339(last_watermark_ns),
                f"`{command} --from-watermark last`",
            )
        return {"checkpoint_is_empty": "true"}
    expected = {"pipeline": options.pipeline, "change_stream": options.change_stream.path}
    for key, value in expected.items():
        if offset.get(key) != value:
            raise ForeignCheckpointError(f"{key} {offset.get(key)!r}", f"{key} {value!r}")
    return {"checkpoint_is_empty": "false"}


def last_watermark_ns(
    settings: Settings, source: SourceHandle, *, until_caught_up: bool
) -> int | None:
    """Where the pipeline ends: its end, and with until_caught_up Spanner's clock now."""
    ends = [] if settings.source.end is None else [parse_rfc3339(settings.source.end)]
    if until_caught_up:
        ends.append(source.connection.strong_read_timestamp_ns())
    return watermark_for_end(min(ends)) if ends else None
