"""The options of the Spark source, as its users write them: checked once, then a frozen value."""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.transport.statement import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from slackwater.scheduler.epoch import watermark_for_end, watermark_for_start
from slackwater.scheduler.epoch_span import SpanTarget
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.read_options import AuditMode, Proof, ReadOptions
from slackwater.timestamp import parse_rfc3339, seconds_to_ns

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

PIPELINE_DEFAULT: Final = "notebook"
NOW: Final = "now"
EARLIEST: Final = "earliest"
_REQUIRED: Final = ("project", "instance", "database", "change_stream")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What a reader of the Spark source needs to know.

    Attributes:
        change_stream: what is read.
        pipeline: keys the metadata store.
        state_url: SQLAlchemy URL of the metadata store.
        keep_ns: how long finished partitions are remembered.
        is_state_lasting: False where the store is a temporary file of this query's own.
        start: "now", "earliest" or the low watermark to start after, in nanoseconds.
        end_ns: the last low watermark, None for none.
        span_max_ns: the longest span of an epoch.
        heartbeat_ms: the heartbeat interval asked of Spanner.
        tasks_max: Spark tasks an epoch, at most.
        read: how tasks read.
        generation: of the lease under which the query runs; None where nobody holds one.
        is_checkpoint_empty: True where the caller knows that the checkpoint is new, None where
            it does not know.
        is_checkpoint_lost: True where the caller knows that the checkpoint was lost, and that
            start is the low watermark of the last epoch committed.
    """

    change_stream: ChangeStream
    pipeline: str
    state_url: str
    keep_ns: int
    is_state_lasting: bool
    start: str | int
    end_ns: int | None
    span_max_ns: int
    span_target: SpanTarget | None
    heartbeat_ms: int
    tasks_max: int
    read: ReadOptions
    generation: int | None
    is_checkpoint_empty: bool | None
    is_checkpoint_lost: bool


OPTION_NAMES: Final = (
    *_REQUIRED,
    "pipeline",
    "state_url",
    "keep_seconds",
    "traces",
    "start",
    "end",
    "max_span_seconds",
    "target_records",
    "target_seconds",
    "heartbeat_milliseconds",
    "tasks",
    "concurrent_queries",
    "database_role",
    "priority",
    "request_tag",
    "directed_read",
    "emulator_host",
    "proof",
    "audit",
    "generation",
    "checkpoint_is_empty",
    "checkpoint_is_lost",
)


def parse_options(given: Mapping[str, str], environ: Mapping[str, str]) -> SourceOptions:
    """The options of spark.readStream, checked.

    Args:
        given: as Spark hands them over; names in any case.
        environ: for SPANNER_EMULATOR_HOST.

    Raises:
        OptionError: an option is missing, unknown or malformed; the message names it.
        ChangeStreamNameError: a name that Spanner could not have given.
    """
    options = {name.lower(): value for name, value in given.items()}
    for name in options:
        if name not in OPTION_NAMES:
            near = difflib.get_close_matches(name, OPTION_NAMES, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(OPTION_NAMES)}"
            raise OptionError(f"spanner_changes has no option {name!r}.", hint)
    missing = [name for name in _REQUIRED if not options.get(name)]
    if missing:
        raise OptionError(
            f"spanner_changes needs the option(s) {', '.join(missing)}.",
            'Give them as .option("change_stream", "...")',
        )
    start = _start(options.get("start", NOW))
    end = _parsed(options, "end", lambda text: watermark_for_end(parse_rfc3339(text)), None)
    if isinstance(start, int) and end is not None and end < start:
        raise OptionError(f"end {options['end']} lies before start {options['start']}.")
    state_url = options.get("state_url") or _temporary_state_url()
    return SourceOptions(
        change_stream=_change_stream(options, environ),
        pipeline=options.get("pipeline", PIPELINE_DEFAULT),
        state_url=state_url,
        keep_ns=seconds_to_ns(_parsed(options, "keep_seconds", _integer(60, 10**9), 3_600)),
        is_state_lasting="state_url" in options,
        start=start,
        end_ns=end,
        span_max_ns=seconds_to_ns(_parsed(options, "max_span_seconds", _positive_seconds, 600)),
        span_target=_span_target(options),
        heartbeat_ms=_parsed(
            options, "heartbeat_milliseconds", _integer(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX), 10_000
        ),
        tasks_max=_parsed(options, "tasks", _integer(1, 100_000), os.cpu_count() or 1),
        read=ReadOptions(
            concurrent_queries=_parsed(options, "concurrent_queries", _integer(1, 1_000), 16),
            proof=_parsed(options, "proof", _one_of(Proof), Proof.OK),
            audit=_parsed(options, "audit", _one_of(AuditMode), AuditMode.STOP),
            traces=_parsed(options, "traces", _boolean, False),
        ),
        generation=_parsed(options, "generation", int, None),
        is_checkpoint_empty=_parsed(options, "checkpoint_is_empty", _boolean, None),
        is_checkpoint_lost=_parsed(options, "checkpoint_is_lost", _boolean, False),
    )


def _change_stream(options: Mapping[str, str], environ: Mapping[str, str]) -> ChangeStream:
    return ChangeStream(
        **{name: options[name] for name in _REQUIRED},
        database_role=options.get("database_role") or None,
        priority=_parsed(options, "priority", _priority, None),
        request_tag=options.get("request_tag") or None,
        directed_read=_parsed(options, "directed_read", _json_object, None),
        emulator_host=options.get("emulator_host") or environ.get("SPANNER_EMULATOR_HOST") or None,
    )


def _span_target(options: Mapping[str, str]) -> SpanTarget | None:
    """None where nobody records the epochs, from which the span would be derived."""
    records = _parsed(options, "target_records", _integer(1, 10**12), None)
    seconds = _parsed(options, "target_seconds", _positive_seconds, 30)
    return None if records is None else SpanTarget(records, seconds)


def _start(text: str) -> str | int:
    if text in (NOW, EARLIEST):
        return text
    try:
        return watermark_for_start(parse_rfc3339(text))
    except ValueError as error:
        raise OptionError(f"start: {error}.", "Use now, earliest or an RFC 3339 time") from error


def _parsed(options: Mapping[str, str], name: str, parse: Callable[[str], T], default: Any) -> Any:
    text = options.get(name)
    if text is None or text == "":
        return default
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"option {name}: {error}.") from error


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not least <= value <= most:
            raise ValueError(f"{value} is outside {least} to {most}")
        return value

    return parse


def _positive_seconds(text: str) -> int:
    return _integer(1, 7 * 86_400)(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text.lower() == "true"


def _priority(text: str) -> str:
    if text.lower() not in ("low", "medium", "high"):
        raise ValueError(f"{text!r} is none of low, medium, high")
    return text.lower()


def _one_of(kind: type[E]) -> Callable[[str], E]:
    def parse(text: str) -> E:
        known = [member.value for member in kind]
        if text.lower() not in known:
            raise ValueError(f"{text!r} is none of {', '.join(known)}")
        return kind(text.lower())

    return parse


def _json_object(text: str) -> dict[str, Any]:
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is no JSON object")  # noqa: TRY004 - of the user
    return value


def _temporary_state_url() -> str:
    """A store for this query alone: the lineage in it can be found again from the checkpoint."""
    folder = Path(tempfile.mkdtemp(prefix="slackwater-"))
    return f"sqlite:///{folder / 'state.db'}"
