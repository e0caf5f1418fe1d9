"""The settings of a source: name, type, bounds, default and meaning of each, in one place.

The settings file, the options of the Spark source in a notebook and `slackwater tail` all take them
from here: a value is parsed and checked by the same function, whether YAML gives it typed or an
option gives it as text. The program hands its settings to the source as options, too: format()
writes a value as the text that parse() reads as the same value.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from slackwater.reader.transport.statement import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from slackwater.scheduler.directed_read import parse_directed_read
from slackwater.scheduler.read_options import AuditMode, Proof, Reading
from slackwater.scheduler.setting_parsers import (
    duration_in,
    format_boolean,
    integer_in,
    member_of,
    name_of,
    number_of,
    optional,
    parse_boolean,
    parse_pipeline,
    parse_priority,
    parse_text,
    parse_time,
    parse_url,
)
from slackwater.timestamp import format_duration_ms, parse_duration_ms, parse_rfc3339

T = TypeVar("T")

NOW: Final = "now"
EARLIEST: Final = "earliest"

_SECOND_MS: Final = parse_duration_ms("1s")
_MINUTE_MS: Final = parse_duration_ms("1m")
_DAY_MS: Final = parse_duration_ms("1d")


@dataclass(frozen=True, eq=False)
class Setting(Generic[T]):
    """One setting.

    Attributes:
        name: the name of the Spark source's option.
        key: the key in the settings file, with its section; None if the file does not have it.
        parse: makes the value of what YAML or an option holds.
            Raises ValueError: the value is not allowed; the message says what is.
        default: the value if the setting is left out.
        doc: what it means, in a few words.
        format: writes a value as an option.
        aliases: former names of the option, each with the function that parses its text.
    """

    name: str
    key: str | None
    parse: Callable[[object], T]
    default: T
    doc: str
    format: Callable[[T], str] = str
    aliases: Mapping[str, Callable[[str], T]] = field(default_factory=dict)


def _start(value: object) -> str:
    if value in (NOW, EARLIEST):
        return str(value)
    try:
        return parse_time(value)
    except ValueError as error:
        raise ValueError(f"{error}; or write {NOW} or {EARLIEST}") from error


_KEEP: Final = duration_in(_MINUTE_MS, parse_duration_ms("36500d"))
_SPAN: Final = duration_in(_SECOND_MS, parse_duration_ms("7d"))
_TARGET_TIME: Final = duration_in(_SECOND_MS, _DAY_MS)
_HEARTBEAT: Final = duration_in(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)

_HEARTBEATS_MS: Final = {
    Reading.BOUNDED: parse_duration_ms("10s"),
    Reading.CONTINUOUS: _SECOND_MS,
}

PROJECT: Final = Setting("project", "source.project", name_of("project"), "", "the project")
INSTANCE: Final = Setting("instance", "source.instance", name_of("instance"), "", "the instance")
DATABASE: Final = Setting("database", "source.database", name_of("database"), "", "the database")
CHANGE_STREAM: Final = Setting(
    "change_stream", "source.change_stream", name_of("change_stream"), "", "the change stream"
)
PIPELINE: Final = Setting(
    "pipeline",
    "pipeline",
    parse_pipeline,
    "notebook",
    "the name in the metadata store and in the checkpoint",
)
START: Final = Setting(
    "start",
    "source.start",
    _start,
    NOW,
    "now, earliest or an RFC 3339 time; counts when the pipeline is new",
)
END: Final = Setting[str | None](
    "end", "source.end", optional(parse_time), None, "no epoch is offered after this RFC 3339 time"
)
DATABASE_ROLE: Final = Setting[str | None](
    "database_role",
    "source.database_role",
    optional(parse_text),
    None,
    "the role for fine-grained access control",
)
PRIORITY: Final = Setting[str | None](
    "priority",
    "source.priority",
    optional(parse_priority),
    None,
    "low, medium or high",
)
REQUEST_TAG: Final = Setting[str | None](
    "request_tag",
    "source.request_tag",
    optional(parse_text),
    None,
    "shown in Spanner's query statistics",
)
DIRECTED_READ: Final = Setting[Mapping[str, Any] | None](
    "directed_read",
    "source.directed_read",
    optional(parse_directed_read),
    None,
    "the replicas that serve the queries",
    format=json.dumps,
)
MAX_SPAN: Final = Setting(
    "max_span",
    "epoch.max_span",
    _SPAN,
    _DAY_MS,
    "the longest time that one epoch covers",
    format=format_duration_ms,
    aliases={"max_span_seconds": number_of("s", _SPAN)},
)
TARGET_RECORDS: Final = Setting(
    "target_records",
    "epoch.target_records",
    integer_in(1, 10**18),
    1_000_000,
    "about how many records an epoch holds at most when the pipeline catches up",
)
TARGET_TIME: Final = Setting(
    "target_time",
    "epoch.target_time",
    _TARGET_TIME,
    parse_duration_ms("30s"),
    "about how long an epoch takes at most when the pipeline catches up",
    format=format_duration_ms,
    aliases={"target_seconds": number_of("s", _TARGET_TIME)},
)
READING: Final = Setting(
    "reading",
    "epoch.reading",
    member_of(Reading),
    Reading.BOUNDED,
    "bounded: a query a partition and epoch; continuous: queries that stay open",
)
READER_MEMORY: Final = Setting(
    "reader_memory",
    "epoch.reader_memory",
    integer_in(16, 1_000_000),
    256,
    "with continuous reading, the MiB of records that may wait in a reader process",
)
HEARTBEAT: Final = Setting[int | None](
    "heartbeat",
    "epoch.heartbeat",
    optional(_HEARTBEAT),
    None,
    "the heartbeat interval asked of Spanner; 10s, or 1s with continuous reading, if left out",
    format=lambda ms: "" if ms is None else format_duration_ms(ms),
    aliases={"heartbeat_milliseconds": number_of("ms", _HEARTBEAT)},
)
CONCURRENT_QUERIES: Final = Setting(
    "concurrent_queries",
    "epoch.concurrent_queries",
    integer_in(1, 1_000),
    16,
    "partition queries at once in a Spark task",
)
PROOF: Final = Setting(
    "proof",
    "epoch.proof",
    member_of(Proof),
    Proof.OK,
    "what shows that a partition was read through an epoch's end",
)
AUDIT: Final = Setting(
    "audit",
    "epoch.audit",
    member_of(AuditMode),
    AuditMode.STOP,
    "what becomes of an epoch that breaks what Spanner promises",
)
STATE_URL: Final = Setting(
    "state_url", "state.url", parse_url, "sqlite:///out/state.db", "the metadata store"
)
KEEP: Final = Setting(
    "keep",
    "state.keep",
    _KEEP,
    parse_duration_ms("1h"),
    "how long finished partitions are remembered",
    format=format_duration_ms,
    aliases={"keep_seconds": number_of("s", _KEEP)},
)

# The options below are the source's alone.
TASKS: Final = Setting(
    "tasks", None, integer_in(1, 100_000), os.cpu_count() or 1, "Spark tasks an epoch, at most"
)
TABLE: Final = Setting[str | None](
    "table",
    None,
    optional(parse_text),
    None,
    "read the changes of one table, in typed columns",
)
TRACES: Final = Setting(
    "traces",
    None,
    parse_boolean,
    False,
    "keep in the metadata store when the longest queries of an epoch ran",
    format=format_boolean,
)
EMULATOR_HOST: Final = Setting[str | None](
    "emulator_host", None, optional(parse_text), None, "HOST:PORT of an emulator"
)
EPOCH_HISTORY: Final = Setting(
    "epoch_history",
    None,
    parse_boolean,
    False,
    "the caller records epochs, so that target_records and target_time can bound them",
    format=format_boolean,
)
GENERATION: Final = Setting[int | None](
    "generation",
    None,
    optional(integer_in(0, 2**63 - 1)),
    None,
    "of the lease under which the query runs",
)
CHECKPOINT_IS_EMPTY: Final = Setting[bool | None](
    "checkpoint_is_empty",
    None,
    optional(parse_boolean),
    None,
    "the query is new",
    format=format_boolean,
)
CHECKPOINT_IS_LOST: Final = Setting(
    "checkpoint_is_lost",
    None,
    parse_boolean,
    False,
    "the checkpoint was lost, and start is the last committed low watermark",
    format=format_boolean,
)
CHECKPOINT_WATERMARK: Final = Setting[str | None](
    "checkpoint_watermark",
    None,
    optional(parse_time),
    None,
    "the low watermark at which the checkpoint's last epoch ends",
)
CAUGHT_UP_AT: Final = Setting[str | None](
    "caught_up_at",
    None,
    optional(parse_time),
    None,
    "the last low watermark, unless tables are being read again: these are finished first",
)
BEGUN_EPOCH: Final = Setting[str | None](
    "begun_epoch",
    None,
    optional(parse_time),
    None,
    "the low watermark at which an epoch ends that is visible in some of the output's tables",
)

REQUIRED: Final = (PROJECT, INSTANCE, DATABASE, CHANGE_STREAM)
SETTINGS: Final[tuple[Setting[Any], ...]] = (
    *REQUIRED,
    PIPELINE,
    STATE_URL,
    KEEP,
    START,
    END,
    MAX_SPAN,
    TARGET_RECORDS,
    TARGET_TIME,
    READING,
    READER_MEMORY,
    HEARTBEAT,
    CONCURRENT_QUERIES,
    PROOF,
    AUDIT,
    DATABASE_ROLE,
    PRIORITY,
    REQUEST_TAG,
    DIRECTED_READ,
    TASKS,
    TABLE,
    TRACES,
    EMULATOR_HOST,
    EPOCH_HISTORY,
    GENERATION,
    CHECKPOINT_IS_EMPTY,
    CHECKPOINT_IS_LOST,
    CHECKPOINT_WATERMARK,
    CAUGHT_UP_AT,
    BEGUN_EPOCH,
)


def heartbeat_ms(heartbeat: int | None, reading: Reading) -> int:
    """Return the heartbeat interval to ask of Spanner, milliseconds.

    With continuous reading it decides how fresh the output can be.

    Args:
        heartbeat: the setting.
        reading: how an epoch's records come.
    """
    return heartbeat if heartbeat is not None else _HEARTBEATS_MS[reading]


def require_end_after_start(start: str, end: str | None) -> None:
    """Check two times against each other.

    Raises:
        ValueError: end lies before start.
    """
    if (
        end is not None
        and start not in (NOW, EARLIEST)
        and parse_rfc3339(end) < parse_rfc3339(start)
    ):
        raise ValueError(f"end {end} lies before start {start}; write a later end")
