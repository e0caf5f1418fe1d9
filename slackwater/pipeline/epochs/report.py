"""Reports of committed epochs: for the log, the live view, metrics and traces."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slackwater.pipeline.catch_up import CatchUp, Pace
from slackwater.state.task_metrics import COMMITTED_STEPS, TaskMetrics
from slackwater.timestamp import (
    floor_to_us,
    format_rfc3339,
    ms_to_seconds,
    ns_to_seconds,
    parse_rfc3339,
)

# Ours, and Spark's names for them.
_STAGES: Final = {
    "choose": "latestOffset",
    "log": "walCommit",
    "plan": "queryPlanning",
    "write": "addBatch",
    "commit": "commitOffsets",
}


@dataclass(frozen=True, slots=True)
class EpochReport:
    """An epoch that the sink committed.

    Attributes:
        epoch: Spark's number of the micro-batch.
        start_ns, low_watermark_ns: the cut (start, low watermark].
        records, transactions: their numbers.
        written: of the records, those that the filter keeps.
        late_records: those at or before start_ns, which came too late for their own epoch.
        partitions: partitions alive or waiting at its end.
        lag_ns: the lag of the low watermark behind Spanner's clock when it was committed.
        catch_up: whether the pipeline keeps up, judged by the last epochs.
        seconds: from choosing the cut to the commit.
        stages_ms: the duration of each of Spark's stages.
        read_ms, sink_ms: of the write stage, how long the records took to be read and staged, and
            the sink to make them visible.
        begun_ns: when it began, by the driver's clock.
        durable_ns: when it was visible, by Spanner's clock.
        measures: of its tasks.
    """

    epoch: int
    start_ns: int
    low_watermark_ns: int
    records: int
    written: int
    transactions: int
    late_records: int
    partitions: int
    lag_ns: int
    catch_up: CatchUp
    seconds: float
    stages_ms: Mapping[str, int]
    read_ms: int
    sink_ms: int
    begun_ns: int
    durable_ns: int
    measures: TaskMetrics

    def freshness_seconds(self) -> list[tuple[float, int]]:
        """Return the times that records took to become durable, each with the number of records.

        Returns:
            Pairs of the seconds since their commit, accurate to a fiftieth of the epoch's span, and
            the number of records.
        """
        span_ns = self.low_watermark_ns - self.start_ns
        return [
            (
                ns_to_seconds(
                    self.durable_ns - self.start_ns - (step + 0.5) * span_ns / COMMITTED_STEPS
                ),
                records,
            )
            for step, records in sorted(self.measures.committed.items())
        ]

    def stage_seconds(self) -> dict[str, float]:
        """Return the seconds of each stage: Spark's, with the write in two halves, and "all"."""
        stages = {name: ms for name, ms in self.stages_ms.items() if name != "write"}
        stages |= {"read": self.read_ms, "sink": self.sink_ms}
        return {"all": self.seconds, **{name: ms_to_seconds(ms) for name, ms in stages.items()}}

    def fields(self) -> dict[str, object]:
        """Return the fields of a log line, in the order a person wants them."""
        return {
            "epoch": self.epoch,
            "low_watermark": format_rfc3339(floor_to_us(self.low_watermark_ns)),
            "lag_seconds": round(ns_to_seconds(self.lag_ns), 3),
            # A pipeline that keeps up need not say so in each line.
            **({} if self.catch_up.pace is Pace.KEEPS_UP else {"keeps_up": self.catch_up.text()}),
            "records": self.records,
            # Only a filter makes a difference.
            **({} if self.written == self.records else {"written": self.written}),
            "transactions": self.transactions,
            "late_records": self.late_records,
            "partitions": self.partitions,
            "seconds": round(self.seconds, 3),
            **{f"{stage}_ms": ms for stage, ms in self.stages_ms.items()},
            "read_ms": self.read_ms,
            "sink_ms": self.sink_ms,
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of Spark's progress event that matters here.

    Attributes:
        epoch: the micro-batch's number.
        start_ns: where the epoch starts; None for the first one, which decides where the pipeline
            starts.
        end_ns: where the epoch ends; None if there is no epoch yet.
        begun_ns: when it began, by the driver's clock, to the millisecond.
        seconds: Spark's duration of the whole trigger.
        stages_ms: of each stage: choose and log the cut, plan, read and write, commit.
    """

    epoch: int
    start_ns: int | None
    end_ns: int | None
    begun_ns: int
    seconds: float
    stages_ms: Mapping[str, int]

    @property
    def is_epoch(self) -> bool:
        """True for an epoch, False for an event without one."""
        return self.end_ns is not None and self.start_ns != self.end_ns


def parse_progress(event: Mapping[str, Any]) -> Progress:
    """Return the relevant fields of a StreamingQueryProgress, from its parsed JSON."""
    source = event["sources"][0]
    durations = event.get("durationMs", {})
    return Progress(
        epoch=event["batchId"],
        start_ns=_watermark_ns(source.get("startOffset")),
        end_ns=_watermark_ns(source.get("endOffset")),
        begun_ns=parse_rfc3339(event["timestamp"]),
        seconds=ms_to_seconds(durations.get("triggerExecution", 0)),
        stages_ms={name: durations.get(of, 0) for name, of in _STAGES.items()},
    )


def _watermark_ns(offset: Any) -> int | None:
    if isinstance(offset, str):
        offset = json.loads(offset)
    text = offset.get("low_watermark") if offset else None
    return None if text is None else parse_rfc3339(text)
