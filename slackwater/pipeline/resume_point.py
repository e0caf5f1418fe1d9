"""The resume point of a pipeline: from checkpoint, store, scan, or as an operator accepts."""

import time
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

import structlog
from pyspark.sql import SparkSession

from slackwater.config.settings import Settings
from slackwater.errors import PartsDisagreeError, RecoveryError
from slackwater.pipeline.pipeline_source import PipelineSource
from slackwater.pipeline.reconciliation import (
    CheckpointPosition,
    OutputNs,
    Positions,
    StorePosition,
    Verdict,
    begun_epoch_ns,
    last_ns,
    reconcile,
    refusal,
    remakes_checkpoint,
    skip_from_ns,
)
from slackwater.pipeline.recovery import (
    EARLIEST,
    LAST,
    Recovery,
    named_watermark_ns,
    require_gap,
    start_after_lost_checkpoint_ns,
)
from slackwater.pipeline.source import source_options
from slackwater.pipeline.spark.checkpoint import (
    Checkpoint,
    Offset,
    has_offsets,
    put_aside,
    read_checkpoint,
)
from slackwater.pipeline.start_positions import ExactStart, Origin, StartFacts, origin_of, set_start
from slackwater.scheduler.epoch import watermark_for_start
from slackwater.scheduler.errors import ForeignCheckpointError, PositionsLostError
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.start_position import earliest_watermark_ns, require_readable
from slackwater.spark_sink.formats import DATABASES
from slackwater.spark_sink.sink import KeepsPositions, OutputPosition, Sink
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.state.commit import restart_at
from slackwater.state.gaps import gaps, record_gap
from slackwater.state.models import Gap
from slackwater.state.plans import latest_plan, sealed_plan_id
from slackwater.state.positions import positions_at_ns
from slackwater.state.scans import read_scan
from slackwater.state.store import Store
from slackwater.timestamp import (
    HALF_MICROSECOND_NS,
    datetime_to_ns,
    format_rfc3339,
    parse_rfc3339,
    seconds_to_ns,
)

_log = structlog.get_logger("slackwater.pipeline.resume_point")

# The first reads would fail if their changes expired meanwhile.
_MARGIN_NS: Final = seconds_to_ns(3_600)


class ResumePoint:
    """The comparison of the durable parts of a pipeline that this process owns.

    Args:
        spark: reaches the checkpoint and the output.
        settings: the pipeline's.
        store: the metadata store, in which an accepted loss is recorded.
        sink: the pipeline's, which knows the last epoch that is visible.
        options: of the settings, for the names in the checkpoint.
    """

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        store: Store,
        sink: Sink,
        options: SourceOptions[Any],
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._store = store
        self._sink = sink
        self._options = options
        self._has_restarted = False
        self._finds_partitions = settings.source.finds_partitions
        settings.sink.claim_places()

    def is_new(self, source: PipelineSource, recovery: Recovery) -> bool:
        """Return True if nothing has begun but an initial scan.

        Raises:
            PositionsLostError: see source_options().
            PartsDisagreeError: checkpoint, store and output do not agree, and the operator has not
                said what to do.
            ForeignCheckpointError: the checkpoint belongs to another pipeline or change stream.
        """
        verdict = reconcile(self._settings.pipeline, positions := self._positions())
        if recovery.from_watermark is None and not self._remakes_checkpoint(
            source, positions, verdict
        ):
            self._require(verdict, positions, recovery)
        return verdict is Verdict.NEW and recovery.from_watermark is None

    def source_options(
        self, source: PipelineSource, recovery: Recovery, generation: int
    ) -> SourceOptions[Any]:
        """Return the options of the Spark source in the next query.

        Args:
            source: the change stream.
            recovery: the losses that the operator accepts.
            generation: of the lease that this process holds.

        Raises:
            PartsDisagreeError, ForeignCheckpointError: see is_new().
            PositionsLostError: a checkpoint was lost, and the positions with it.
            RecoveryError: the recovery does not fit the pipeline.
            ReaderError, StateError: Spanner or the store failed.
        """
        options = replace(source_options(self._settings), generation=generation)
        positions = self._positions()
        if positions.store.scan_ns is not None:
            # Changes begin where the rows were read: no gap, and nothing twice.
            options = replace(options, start=watermark_for_start(positions.store.scan_ns))
        verdict = reconcile(self._settings.pipeline, positions)
        start_ns: int | None
        from_watermark = recovery.from_watermark
        if self._has_restarted and positions.checkpoint is None:
            # The last query failed before it planned an epoch.
            from_watermark = LAST
        elif from_watermark is None and self._remakes_checkpoint(source, positions, verdict):
            from_watermark = LAST
        if from_watermark is not None:
            start_ns = self._restart(source, verdict, positions, from_watermark, generation)
            start = watermark_for_start(start_ns)
            options = replace(options, start=start, is_checkpoint_lost=True)
        else:
            self._require(verdict, positions, recovery)
            if (exact := self._exact_start(source, positions)) and exact.origin is Origin.OUTPUT:
                self._set_start(exact, generation)
            elif verdict is Verdict.FIND_PARTITIONS and positions.store.committed_ns is None:
                _log.warning(
                    "the metadata store has nothing about this pipeline; reading the partitions"
                    " from the change stream at the checkpoint's low watermark",
                    pipeline=self._settings.pipeline,
                    state=self._store.url,
                )
            if verdict is Verdict.NEW:
                self._put_blank_checkpoint_aside()
            start_ns = positions.checkpoint.planned_ns if positions.checkpoint else None
            options = replace(options, checkpoint_ns=start_ns)
        options = replace(
            options,
            is_checkpoint_empty=positions.checkpoint is None or from_watermark is not None,
            begun_epoch_ns=begun_epoch_ns(positions, start_ns),
            written_ns=positions.output.committed_ns if positions.output else None,
        )
        if recovery.skip_to is not None:
            after_ns = skip_from_ns(positions) if from_watermark is None else start_ns
            self._accept_gap(source, after_ns, recovery.skip_to)
        # The checkpoint may have been put aside.
        self._settings.sink.claim_places()
        return options

    def _remakes_checkpoint(
        self, source: PipelineSource, positions: Positions, verdict: Verdict
    ) -> bool:
        is_expendable = self._settings.sink.has_expendable_checkpoint
        is_remade = remakes_checkpoint(positions, verdict, is_expendable=is_expendable)
        exact = self._exact_start(source, positions) if is_remade else None
        if exact is not None and exact.origin is Origin.LOST:
            raise PositionsLostError(self._settings.pipeline, format_rfc3339(exact.at_ns))
        return is_remade

    def _exact_start(self, source: PipelineSource, positions: Positions) -> ExactStart | None:
        """Return where the output ends; None if its time suffices, or before the first epoch."""
        at_ns, name = self._last_ns(positions), self._settings.pipeline
        if self._finds_partitions or at_ns is None:
            return None
        output, of_store = positions.output, positions.store
        committed_ns = output.committed_ns if output else None
        has_plan = (
            of_store.plan_start_ns is not None
            and of_store.plan_end_ns == at_ns
            and sealed_plan_id(self._store, name, of_store.plan_start_ns, at_ns) is not None
        )
        text = self._positions_in_output(source, committed_ns)
        facts = StartFacts(
            at_ns,
            committed_ns,
            is_told=output is not None and output.complete_ns is not None,
            is_in_output=text is not None,
            stored_ns=positions_at_ns(self._store, name),
            has_plan=has_plan,
        )
        return ExactStart(at_ns, origin_of(facts), text)

    def _positions_in_output(self, source: PipelineSource, committed_ns: int | None) -> str | None:
        """Return the positions of the last commit, unless the changes after them may be gone.

        They are not those of an epoch after a gap that an operator has accepted since.
        """
        if committed_ns is None or not isinstance(self._sink, KeepsPositions):
            return None
        if any(gap.end_ns > committed_ns for gap in gaps(self._store, self._settings.pipeline)):
            return None
        retention_ns = source.retention_ns
        age_ns = source.changes().strong_read_timestamp_ns() - committed_ns
        if retention_ns is not None and age_ns > retention_ns - _MARGIN_NS:
            return None
        return self._sink.last_positions()

    def _set_start(self, exact: ExactStart, generation: int) -> None:
        name, after = self._settings.pipeline, format_rfc3339(exact.at_ns)
        set_start(self._store, name, exact, generation=generation)
        _log.info("positions", pipeline=name, after=after, origin=exact.origin.value)

    def _put_blank_checkpoint_aside(self) -> None:
        """Let Spark begin again if the plan of the first epoch was not completely written.

        A power cut leaves it empty, a full disk under the name that it had until it was whole.
        """
        folder = self._settings.sink.checkpoint
        checkpoint = read_checkpoint(self._spark, folder)
        is_blank = checkpoint is not None and not checkpoint.is_whole
        if is_blank or (checkpoint is None and has_offsets(self._spark, folder)):
            put_aside(self._spark, folder)

    def _positions(self) -> Positions:
        """Read the positions of the parts.

        Raises:
            ForeignCheckpointError: the checkpoint belongs to another pipeline or change stream.
        """
        pipeline = self._store.pipeline(self._settings.pipeline)
        scan = read_scan(self._store, self._settings.pipeline)
        checkpoint = self._own_checkpoint()
        output = self._sink.position(self._spark)
        plan = latest_plan(self._store, self._settings.pipeline)
        is_to_scan = checkpoint is None and (scan is None or not scan[0].is_done)
        return Positions(
            _checkpoint_position(checkpoint) if checkpoint else None,
            StorePosition(
                committed_ns=pipeline.low_watermark_ns if pipeline else None,
                scan_ns=scan[0].at_ns if scan else None,
                is_scan_done=scan is not None and scan[0].is_done,
                scanned=scan[0].records if scan else 0,
                plan_start_ns=plan.start_ns if plan else None,
                plan_end_ns=plan.end_ns if plan else None,
            ),
            OutputNs(
                _watermark_ns(output.complete),
                _watermark_ns(output.begun),
                output.pipeline,
                has_rows=self._has_rows(output) if is_to_scan else None,
                committed_ns=_watermark_ns(output.committed),
            )
            if output
            else None,
        )

    def _has_rows(self, output: OutputPosition) -> bool | None:
        """Return True if an initial scan finds something in the output; None if it can't tell."""
        sink = self._settings.sink
        if self._settings.initial_scan == "no":
            return None
        if output.has_tables is not None:
            return output.has_tables
        place = sink.make_place()
        with place.translating():
            names = place.names()
        if any(not name.startswith(("_", ".")) for name in names):
            return True
        is_of_files = isinstance(sink, TableSettings) and (
            sink.catalog is None and sink.format not in DATABASES
        )
        return False if is_of_files else None

    def _own_checkpoint(self) -> Checkpoint | None:
        folder = self._settings.sink.checkpoint
        checkpoint = read_checkpoint(self._spark, folder)
        if checkpoint is None:
            return None
        try:
            self._require_own(checkpoint)
        except ForeignCheckpointError:
            if not self._settings.sink.has_expendable_checkpoint:
                raise
            put_aside(self._spark, folder)
            return None
        return checkpoint

    def _require_own(self, checkpoint: Checkpoint) -> None:
        if (offset := checkpoint.planned) is None:
            return
        expected = {
            "pipeline": self._options.pipeline,
            "change_stream": self._options.change_stream.path,
        }
        for key, value in expected.items():
            if offset.get(key) != value:
                raise ForeignCheckpointError(f"{key} {offset.get(key)!r}", f"{key} {value!r}")

    def _require(self, verdict: Verdict, positions: Positions, recovery: Recovery) -> None:
        if verdict.is_refused:
            raise PartsDisagreeError(
                *refusal(self._settings.pipeline, positions, verdict, recovery.command)
            )

    def _restart(
        self,
        source: PipelineSource,
        verdict: Verdict,
        positions: Positions,
        from_watermark: str,
        generation: int,
    ) -> int:
        """Set store and checkpoint to a low watermark, and return it.

        In this order: if this process dies in between, the same command is needed again.

        Raises:
            RecoveryError: there is nothing to recover, or the low watermark is not the last
                epoch's.
        """
        name = self._settings.pipeline
        checkpoint = self._settings.sink.checkpoint
        agrees = verdict in (Verdict.GO_ON, Verdict.FIND_PARTITIONS)
        exact = self._exact_start(source, positions)
        if agrees and (exact is None or exact.origin is not Origin.LOST):
            raise RecoveryError(
                f"the checkpoint {checkpoint} is not lost: it agrees with the output.",
                "Leave out --from-watermark",
            )
        if verdict in (Verdict.OUTPUT_FOREIGN, Verdict.SCAN_UNKNOWN, Verdict.SCAN_LOST):
            self._require(verdict, positions, Recovery())
        is_output_asked = positions.output is not None and positions.output.complete_ns is not None
        start_ns = start_after_lost_checkpoint_ns(
            name, from_watermark, last_ns=self._last_ns(positions), is_certain=is_output_asked
        )
        if exact is not None and exact.at_ns == start_ns:
            self._set_start(exact, generation)
        else:
            restart_at(self._store, name, start_ns, [], generation=generation)
        aside = put_aside(self._spark, checkpoint)
        self._has_restarted = True
        after = format_rfc3339(start_ns)
        _log.warning("new checkpoint", pipeline=name, after=after, former_checkpoint=aside)
        return start_ns

    def _last_ns(self, positions: Positions) -> int | None:
        """Return the low watermark after which a new checkpoint goes on.

        Where partitions are not found by a time, there is one table: its last commit is the epoch.
        """
        committed_ns = positions.output.committed_ns if positions.output else None
        ends = [last_ns(positions), None if self._finds_partitions else committed_ns]
        return max((ns for ns in ends if ns is not None), default=None)

    def _accept_gap(self, source: PipelineSource, start_ns: int | None, skip_to: str) -> None:
        """Record that the records between the last epoch and skip_to are not read.

        Raises:
            RecoveryError: the pipeline has no epoch, or skip_to does not lie after it.
            ReaderError: the stream can't be read from there.
        """
        name = self._settings.pipeline
        if start_ns is None:
            raise RecoveryError(
                f"pipeline {name!r} has no epoch: there is nothing to skip.", "Set source.start"
            )
        if skip_to == EARLIEST:
            end_ns = earliest_watermark_ns(source.changes())
        else:
            end_ns = named_watermark_ns(skip_to)
        require_gap(start_ns, end_ns)
        require_readable(end_ns, source.changes())
        record_gap(self._store, Gap(name, start_ns, end_ns, time.time_ns()))
        _log.warning(
            "gap accepted",
            pipeline=name,
            after=format_rfc3339(start_ns),
            through=format_rfc3339(end_ns),
        )


def _checkpoint_position(checkpoint: Checkpoint) -> CheckpointPosition | None:
    planned_ns = _offset_ns(checkpoint.planned)
    if planned_ns is None:
        return None
    return CheckpointPosition(planned_ns, _offset_ns(checkpoint.committed), checkpoint.is_whole)


def _offset_ns(offset: Offset | None) -> int | None:
    text = offset.get("low_watermark") if offset else None
    return None if text is None else parse_rfc3339(text)


def _watermark_ns(time: datetime | None) -> int | None:
    """Return the low watermark that a time in whole microseconds stands for in the output."""
    return None if time is None else datetime_to_ns(time) + HALF_MICROSECOND_NS
