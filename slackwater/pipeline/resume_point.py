"""Where a pipeline resumes: from the checkpoint, the store, the scan, or as an operator accepts."""

from __future__ import annotations

import time

import structlog
from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.errors import RecoveryError
from slackwater.pipeline.recovery import (
    EARLIEST,
    Recovery,
    last_committed_watermark_ns,
    named_watermark_ns,
    require_gap,
    start_after_lost_checkpoint_ns,
)
from slackwater.pipeline.source import SourceHandle, source_options
from slackwater.pipeline.spark.checkpoint import committed_offset, last_offset
from slackwater.scheduler.errors import CheckpointLostError, ForeignCheckpointError
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.start_position import earliest_watermark_ns, require_readable
from slackwater.spark_sink.sink import Sink
from slackwater.state.gaps import record_gap
from slackwater.state.models import Gap
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339, parse_rfc3339

_log = structlog.get_logger("slackwater.pipeline.resume_point")


def has_begun(spark: SparkSession, settings: Settings, store: Store) -> bool:
    """Return True if an epoch was planned, so that no initial scan can come before it."""
    pipeline = store.pipeline(settings.pipeline)
    is_planned = pipeline is not None and pipeline.planned_watermark_ns is not None
    return is_planned or last_offset(spark, settings.sink.checkpoint) is not None


def options_to_go_on(
    spark: SparkSession,
    settings: Settings,
    source: SourceHandle,
    store: Store,
    sink: Sink,
    recovery: Recovery,
) -> dict[str, str]:
    """Return the Spark source's options for a pipeline that this process owns.

    Args:
        spark: reaches the checkpoint.
        settings: the pipeline's.
        source: its change stream.
        store: the metadata store, in which an accepted gap is recorded.
        sink: the pipeline's, which knows the last epoch that is visible.
        recovery: what the operator accepts.

    Raises:
        RecoveryError: what the operator accepts does not fit the pipeline.
        ForeignCheckpointError, CheckpointLostError: the checkpoint does not.
        ReaderError, StateError: Spanner or the store failed.
    """
    pipeline = store.pipeline(settings.pipeline)
    assert pipeline is not None  # noqa: S101 - made before it was owned
    options = source_options(settings)
    if pipeline.planned_watermark_ns is None and last_offset(spark, settings.sink.checkpoint):
        _log.warning(
            "the metadata store has nothing about this pipeline; reading the partitions from the"
            " change stream at the checkpoint's low watermark",
            pipeline=settings.pipeline,
            state=store.url,
        )
    scan = read_scan(store, settings.pipeline)
    scanned_ns = None if scan is None else scan[0].at_ns
    if scanned_ns is not None:
        # Changes begin where the rows were read: no gap, and nothing twice.
        options["start"] = format_rfc3339(scanned_ns)
    position = sink.position(spark)
    last_visible = None if position is None else position.complete
    last_ns = last_committed_watermark_ns(pipeline.low_watermark_ns, last_visible)
    if recovery.from_watermark is not None:
        options |= _new_checkpoint_options(spark, settings, recovery.from_watermark, last_ns)
    else:
        options |= _resume_options(
            spark,
            settings,
            source.options,
            last_watermark_ns=last_ns if last_ns != scanned_ns else None,
            command=recovery.command,
        )
    if recovery.skip_to is not None:
        gap = _accept_gap(spark, settings, source, store, recovery.skip_to)
        _log.warning(
            "gap accepted",
            pipeline=settings.pipeline,
            after=format_rfc3339(gap.start_ns),
            through=format_rfc3339(gap.end_ns),
        )
    return options


def _resume_options(
    spark: SparkSession,
    settings: Settings,
    options: SourceOptions,
    *,
    last_watermark_ns: int | None,
    command: str,
) -> dict[str, str]:
    """Return the options that say whether the checkpoint is empty, after checking whose it is.

    Args:
        spark: reaches the checkpoint.
        settings: the pipeline's.
        options: those of the settings.
        last_watermark_ns: that of the last epoch certainly committed, None for none.
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


def _new_checkpoint_options(
    spark: SparkSession, settings: Settings, from_watermark: str, last_ns: int | None
) -> dict[str, str]:
    """Return the source's options for going on with a new checkpoint.

    Raises:
        RecoveryError: the checkpoint is not lost, or the low watermark is not the last epoch's.
    """
    if last_offset(spark, settings.sink.checkpoint) is not None:
        raise RecoveryError(
            f"the checkpoint {settings.sink.checkpoint} is not lost: it holds epochs.",
            "Leave out --from-watermark",
        )
    start_ns = start_after_lost_checkpoint_ns(settings.pipeline, from_watermark, last_ns=last_ns)
    return {
        "start": format_rfc3339(start_ns),
        "checkpoint_is_empty": "true",
        "checkpoint_is_lost": "true",
    }


def _accept_gap(
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
        end_ns = earliest_watermark_ns(source.changes())
    else:
        end_ns = named_watermark_ns(skip_to)
    require_gap(start_ns, end_ns)
    require_readable(end_ns, source.changes())
    gap = Gap(settings.pipeline, start_ns, end_ns, time.time_ns())
    record_gap(store, gap)
    return gap
