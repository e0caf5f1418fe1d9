"""The answers of `status` and `partitions`, mostly from the metadata store."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.config.settings import Settings
from slackwater.errors import MissingExtraError, PipelineNotStartedError
from slackwater.monitoring.json_fields import (
    catch_up_fields,
    epoch_fields,
    gap_fields,
    pipeline_fields,
    position_fields,
    query_fields,
    rescan_fields,
    rfc3339_or_none,
    verification_fields,
)
from slackwater.pipeline.alerts import held_back_by
from slackwater.pipeline.catch_up import CatchUp, catch_up, retention_used
from slackwater.pipeline.condition import condition
from slackwater.pipeline.lease_holder import has_dead_owner
from slackwater.pipeline.pipeline_source import connect_source, with_tables
from slackwater.pipeline.source import columns_of_new_types
from slackwater.printing import in_one_line
from slackwater.reader.bigtable.positions import standing
from slackwater.reader.errors import ReaderError
from slackwater.scheduler.bigtable.stored_positions import positions_of
from slackwater.scheduler.lineage_planning import count_by_state
from slackwater.state.epochs import last_epochs
from slackwater.state.gaps import gaps
from slackwater.state.models import Epoch, Pipeline
from slackwater.state.open_queries import latest_open_queries, stalls
from slackwater.state.rescans import rescans
from slackwater.state.scans import read_scan, share_done
from slackwater.state.store import Store
from slackwater.state.verified_tables import verified_tables
from slackwater.timestamp import ns_to_seconds

_EPOCHS_SUMMED: Final = 10_000
_ANSWER_S_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class _Answer:
    """The source's answer about a change stream.

    Attributes:
        clock_ns: the source's clock; None without an answer.
        retention_ns: how long the change stream keeps records; None without an answer, or if
            the source does not say.
        new_types: the watched columns of new types; see columns_of_new_types().
        problem: why there is none, as a sentence without the period.
    """

    clock_ns: int | None = None
    retention_ns: int | None = None
    new_types: Sequence[Mapping[str, str]] = ()
    problem: str | None = None


def statuses(pipelines: Sequence[Settings]) -> list[dict[str, Any]]:
    """Return the status of each pipeline as JSON fields.

    Fields from the source are None if it does not answer within some seconds.

    Raises:
        PipelineNotStartedError: the only pipeline has never run. Of several, that is their status.
        StateError: the store can't be read.
    """
    if len(pipelines) == 1:
        # One that has never run need not wait for its source.
        with open_pipeline(pipelines[0]):
            pass
    answers = _answers(pipelines)
    if len(pipelines) == 1:
        return [_status(pipelines[0], answers[0])]
    return [_status_or_none(*of_one) for of_one in zip(pipelines, answers, strict=True)]


def summary_line(fields: Mapping[str, Any]) -> str:
    """Return the line that says whether a pipeline keeps up."""
    return f"{fields['pipeline']}: {fields['keeps_up']['text']}"


def _status_or_none(settings: Settings, answer: _Answer) -> dict[str, Any]:
    try:
        return _status(settings, answer)
    except PipelineNotStartedError:
        never = Pipeline(settings.pipeline, "")
        fields = pipeline_fields(never, is_owner_dead=False)
        return {**fields, "keeps_up": catch_up_fields(_catch_up(never))}


def _status(settings: Settings, answer: _Answer) -> dict[str, Any]:
    with open_pipeline(settings) as (store, pipeline):
        epochs = last_epochs(store, settings.pipeline, limit=_EPOCHS_SUMMED)
        watermark_ns = pipeline.low_watermark_ns
        partitions = store.partitions(settings.pipeline)
        by_state = (
            count_by_state(store, settings.pipeline, partitions, watermark_ns)
            if watermark_ns
            else {}
        )
        keeps_up = _catch_up(pipeline, epochs, answer, share_done(store, settings.pipeline))
        return {
            **pipeline_fields(pipeline, is_owner_dead=has_dead_owner(pipeline)),
            "low_watermark": rfc3339_or_none(watermark_ns),
            "initial_scan": _scan(store, settings.pipeline),
            "rescans": [rescan_fields(rescan) for rescan in rescans(store, settings.pipeline)],
            "verification": verification_fields(
                verified_tables(store, settings.pipeline), watermark_ns
            ),
            **_lag(watermark_ns, answer),
            "keeps_up": catch_up_fields(keeps_up),
            "held_back_by": _held_back(store, pipeline),
            "replication_stands_still": position_fields(
                standing(positions_of(store, settings.pipeline))
            ),
            "partitions": {str(state): count for state, count in sorted(by_state.items())},
            "stalls": sum(stalls(store, settings.pipeline).values()),
            # Older ones are forgotten after state.keep.
            "counted_since": rfc3339_or_none(epochs[0].start_ns) if epochs else None,
            "epochs": len(epochs),
            "records": sum(epoch.records for epoch in epochs),
            "late_records": sum(epoch.late_records for epoch in epochs),
            "transactions": sum(epoch.transactions for epoch in epochs),
            "last_epoch": epoch_fields(epochs[-1]) if epochs else None,
            "columns_of_new_types": list(answer.new_types),
            "gaps": [gap_fields(gap) for gap in gaps(store, settings.pipeline)],
        }


def _answers(pipelines: Sequence[Settings]) -> list[_Answer]:
    """Ask the sources about the change streams of all pipelines at once."""
    answers = [
        _Answer(problem=f"{each.source.service} has not answered within {_ANSWER_S_MAX:g} s")
        for each in pipelines
    ]

    def ask_source(number: int, settings: Settings) -> None:
        try:
            source = connect_source(settings)
            with closing(source):
                answer = _Answer(source.clock_ns(), source.retention_ns)
                answers[number] = answer
                if source.has_tables:
                    new_types = columns_of_new_types(with_tables(source))
                    answers[number] = replace(answer, new_types=new_types)
        except (ReaderError, MissingExtraError) as error:
            if answers[number].clock_ns is None:
                answers[number] = _Answer(problem=error.message.rstrip("."))

    # Daemons: the client tries for half a minute, and the command does not wait for that.
    threads = [
        threading.Thread(target=ask_source, args=numbered, daemon=True)
        for numbered in enumerate(pipelines)
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + _ANSWER_S_MAX
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(answers)


def _lag(watermark_ns: int | None, answer: _Answer) -> dict[str, Any]:
    """Return the pipeline's lag behind the source's clock."""
    clock_ns, retention_ns = answer.clock_ns, answer.retention_ns
    if watermark_ns is None or clock_ns is None:
        return {"lag_seconds": None, "retention_used": None}
    used = None
    if retention_ns is not None:
        used = round(retention_used(watermark_ns, clock_ns=clock_ns, retention_ns=retention_ns), 4)
    return {
        "lag_seconds": round(ns_to_seconds(clock_ns - watermark_ns), 3),
        "retention_used": used,
    }


def _catch_up(
    pipeline: Pipeline,
    epochs: Sequence[Epoch] = (),
    answer: _Answer = _Answer(),
    scan_share: float | None = None,
) -> CatchUp:
    """Return whether the pipeline keeps up, by this machine's clock if it has to be."""
    watermark_ns, now_ns = pipeline.low_watermark_ns, time.time_ns()
    return catch_up(
        epochs,
        lag_ns=None if watermark_ns is None else (answer.clock_ns or now_ns) - watermark_ns,
        now_ns=now_ns,
        retention_ns=answer.retention_ns,
        condition=condition(
            pipeline,
            is_owner_dead=has_dead_owner(pipeline),
            source_problem=answer.problem,
            scan_share=scan_share,
        ),
    )


def _scan(store: Store, pipeline: str) -> dict[str, Any] | None:
    """Return the progress of the initial scan; None if there is none."""
    scan_and_parts = read_scan(store, pipeline)
    if scan_and_parts is None:
        return None
    scan, parts = scan_and_parts
    return {
        "at": rfc3339_or_none(scan.at_ns),
        "is_whole": scan.is_done,
        "parts": len(parts),
        "parts_done": sum(part.is_done for part in parts),
        "records": scan.records,
    }


def _held_back(store: Store, pipeline: Pipeline) -> dict[str, Any] | None:
    """Return the query that the running epoch has been waiting for; None if there is none."""
    past_ns = pipeline.low_watermark_ns or 0
    query = held_back_by(latest_open_queries(store, pipeline.name, past_ns=past_ns))
    return None if query is None else query_fields(query)


def lines(statuses: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each pipeline, and of a single one all fields; each is one line."""
    yield from (in_one_line(summary_line(fields)) for fields in statuses)
    if len(statuses) == 1:
        for name, value in flattened(statuses[0]):
            yield f"{name:24} {'-' if value is None else in_one_line(str(value))}"


def flattened(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return JSON fields as lines of a name and a value."""
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        if isinstance(value, dict):
            pairs += flattened(value, f"{prefix}{name} ")
        elif isinstance(value, list):
            items = (", ".join(f"{k} {v}" for k, v in item.items()) for item in value)
            pairs.append((f"{prefix}{name}".replace("_", " "), "; ".join(items) or None))
        else:
            pairs.append((f"{prefix}{name}".replace("_", " "), value))
    return pairs
