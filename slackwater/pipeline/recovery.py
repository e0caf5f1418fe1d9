"""Recovery from a loss that only an operator can accept: of the checkpoint, or of records."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.errors import RecoveryError
from slackwater.pipeline.source import SourceHandle
from slackwater.pipeline.spark.checkpoint import committed_offset, last_offset
from slackwater.scheduler.epoch import watermark_for_start
from slackwater.scheduler.start_position import earliest_watermark_ns, require_readable
from slackwater.spark_sink.sink import Sink
from slackwater.state.gaps import record_gap
from slackwater.state.models import Gap, Pipeline
from slackwater.state.store import Store
from slackwater.timestamp import HALF_MICROSECOND_NS, datetime_to_ns, format_rfc3339, parse_rfc3339

EARLIEST: Final = "earliest"
LAST: Final = "last"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The losses that the operator accepts.

    Attributes:
        from_watermark: the checkpoint is lost; go on from this low watermark: "last" for that of
            the last committed epoch, or a time.
        skip_to: records are lost; go on from here, "earliest" or a time, and leave a gap.
        command: the command line as far as the settings, for messages.
    """

    from_watermark: str | None = None
    skip_to: str | None = None
    command: str = "slackwater run"

    def remedies(self) -> Mapping[str, str]:
        """Return what to do about errors that only an operator can fix, by the error's class."""
        return {
            "StartTooOldError": (
                "The records after the low watermark are lost to this pipeline."
                f" `{self.command} --skip-to {EARLIEST}` goes on and records the gap"
            )
        }


def last_committed_watermark_ns(spark: SparkSession, pipeline: Pipeline, sink: Sink) -> int | None:
    """Return the low watermark of the last epoch that the store or the output has; None for none.

    A pipeline that died between making an epoch visible and recording it has one more in its output
    than in the metadata store. To start before that one would write its records twice.
    """
    written = sink.last_low_watermark(spark)
    watermarks = [] if pipeline.low_watermark_ns is None else [pipeline.low_watermark_ns]
    if written is not None:
        watermarks.append(datetime_to_ns(written) + HALF_MICROSECOND_NS)
    return max(watermarks, default=None)


def start_after_lost_checkpoint(
    spark: SparkSession, settings: Settings, pipeline: Pipeline, sink: Sink, recovery: Recovery
) -> dict[str, str]:
    """Return the source's options for going on with a new checkpoint.

    Raises:
        RecoveryError: the checkpoint is not lost, no epoch is recorded, or another one is the last.
    """
    if last_offset(spark, settings.sink.checkpoint) is not None:
        raise RecoveryError(
            f"the checkpoint {settings.sink.checkpoint} is not lost: it holds epochs.",
            "Leave out --from-watermark",
        )
    last_ns = last_committed_watermark_ns(spark, pipeline, sink)
    text = str(recovery.from_watermark)
    start_ns = last_ns if text == LAST else watermark_for_start(_time_ns(text))
    if start_ns is None:
        raise RecoveryError(
            f"neither the metadata store nor the output knows an epoch of {settings.pipeline!r}.",
            "Name the low watermark: --from-watermark 2026-01-31T09:00:00.1234565Z",
        )
    if last_ns is not None and start_ns != last_ns:
        verb = "write records twice" if start_ns < last_ns else "leave records out"
        raise RecoveryError(
            f"the last epoch of {settings.pipeline!r} ends at {format_rfc3339(last_ns)}; going on"
            f" from {format_rfc3339(start_ns)} would {verb}.",
            f"Use --from-watermark {LAST}",
        )
    return {
        "start": format_rfc3339(start_ns),
        "checkpoint_is_empty": "true",
        "checkpoint_is_lost": "true",
    }


def accept_gap(
    spark: SparkSession, settings: Settings, source: SourceHandle, store: Store, skip_to: str
) -> Gap:
    """Record that the records between the last epoch and skip_to are not read, and return the gap.

    Raises:
        RecoveryError: the pipeline has no epoch, or skip_to does not lie after it.
        ReaderError: the stream can't be read from there.
    """
    offset = committed_offset(spark, settings.sink.checkpoint)
    text = offset.get("low_watermark") if offset else None
    if text is None:
        raise RecoveryError(
            f"pipeline {settings.pipeline!r} has committed no epoch: there is nothing to skip.",
            "Set source.start, with a new pipeline name and checkpoint if it was started before",
        )
    start_ns = parse_rfc3339(text)
    if skip_to == EARLIEST:
        end_ns = earliest_watermark_ns(source.options, source.connection, source.description)
    else:
        end_ns = watermark_for_start(_time_ns(skip_to))
    if end_ns <= start_ns:
        raise RecoveryError(
            f"--skip-to {format_rfc3339(end_ns)} does not lie after the low watermark"
            f" {format_rfc3339(start_ns)}: nothing need be skipped.",
            "Leave out --skip-to",
        )
    require_readable(source.options, source.connection, source.description, end_ns)
    gap = Gap(settings.pipeline, start_ns, end_ns, time.time_ns())
    record_gap(store, gap)
    return gap


def _time_ns(text: str) -> int:
    try:
        return parse_rfc3339(text)
    except ValueError as error:
        raise RecoveryError(f"{error}.", f"Use {EARLIEST}, {LAST} or an RFC 3339 time") from error
