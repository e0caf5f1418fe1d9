"""Where a pipeline goes on: from the checkpoint, the store, the scan, or as an operator accepts."""

from __future__ import annotations

import structlog
from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.pipeline.recovery import (
    Recovery,
    accept_gap,
    last_committed_watermark_ns,
    start_after_lost_checkpoint,
)
from slackwater.pipeline.source import SourceHandle, resume_options, source_options
from slackwater.pipeline.spark.checkpoint import last_offset
from slackwater.spark_sink.sink import Sink
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.timestamp import format_rfc3339

_log = structlog.get_logger("slackwater.pipeline.resume_point")


def has_begun(spark: SparkSession, settings: Settings, store: Store) -> bool:
    """Return True where an epoch was planned, so that no initial scan can come before it."""
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
            "the metadata store knows nothing of this pipeline; the partitions are found again"
            " from the checkpoint's low watermark",
            pipeline=settings.pipeline,
            state=store.url,
        )
    scan = read_scan(store, settings.pipeline)
    scanned_ns = None if scan is None else scan[0].at_ns
    if scanned_ns is not None:
        # Changes begin where the rows were read: no gap, and nothing twice.
        options["start"] = format_rfc3339(scanned_ns)
    if recovery.from_watermark is not None:
        options |= start_after_lost_checkpoint(spark, settings, pipeline, sink, recovery)
    else:
        last_ns = last_committed_watermark_ns(spark, pipeline, sink)
        options |= resume_options(
            spark,
            settings,
            source.options,
            last_watermark_ns=last_ns if last_ns != scanned_ns else None,
            command=recovery.command,
        )
    if recovery.skip_to is not None:
        gap = accept_gap(spark, settings, source, store, recovery.skip_to)
        _log.warning(
            "gap accepted",
            pipeline=settings.pipeline,
            after=format_rfc3339(gap.start_ns),
            through=format_rfc3339(gap.end_ns),
        )
    return options
