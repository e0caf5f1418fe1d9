"""The options of the Spark source: parsed once by source_settings, then a frozen value."""

from __future__ import annotations

import difflib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from slackwater.reader.change_stream import ChangeStream
from slackwater.scheduler import source_settings as settings
from slackwater.scheduler.epoch import watermark_for_end, watermark_for_start
from slackwater.scheduler.epoch_span import SpanTarget
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.read_options import Reading, ReadOptions
from slackwater.scheduler.source_settings import EARLIEST, NOW, SETTINGS, Setting
from slackwater.timestamp import ms_to_ns, ms_to_seconds, parse_rfc3339

T = TypeVar("T")

_MIB: Final = 1024 * 1024
OPTION_NAMES: Final = tuple(setting.name for setting in SETTINGS)
_ALL_NAMES: Final = frozenset(
    name for setting in SETTINGS for name in (setting.name, *setting.aliases)
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The values that a reader of the Spark source works with.

    Attributes:
        change_stream: the change stream to read.
        pipeline: keys the metadata store.
        state_url: SQLAlchemy URL of the metadata store.
        keep_ns: how long finished partitions are kept in the store.
        is_state_lasting: False if the store is a temporary file of this query's own.
        start: "now", "earliest" or the low watermark to start after, in nanoseconds.
        end_ns: the last low watermark, None for none.
        span_max_ns: the longest span of an epoch.
        span_target: bounds epochs by the recorded ones; None if none are recorded.
        reading: how an epoch's records come from Spanner.
        reader_memory_bytes: how many bytes of records may wait in a reader process.
        heartbeat_ms: the heartbeat interval asked of Spanner.
        tasks_max: Spark tasks an epoch, at most.
        read: how tasks read.
        table: the table whose changes are read in typed columns; None for the records of all.
        generation: the generation of the lease under which the query runs; None without a lease.
        is_checkpoint_empty: True if the caller knows that the checkpoint is new; None if it does
            not know.
        is_checkpoint_lost: True if the caller knows that the checkpoint was lost, and that
            start is the low watermark of the last epoch committed.
        checkpoint_ns: the low watermark at which the checkpoint's last epoch ends, if the caller
            knows it.
        caught_up_at_ns: the last low watermark, unless tables are being read again; None for none.
        begun_epoch_ns: where the next epoch has to end, because some of the output's tables have
            it; None if there is no such epoch.
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
    reading: Reading
    reader_memory_bytes: int
    heartbeat_ms: int
    tasks_max: int
    read: ReadOptions
    table: str | None
    generation: int | None
    is_checkpoint_empty: bool | None
    is_checkpoint_lost: bool
    checkpoint_ns: int | None
    caught_up_at_ns: int | None
    begun_epoch_ns: int | None


def format_options(values: Mapping[Setting[Any], Any]) -> dict[str, str]:
    """Return values as options that parse_options reads as the same values; None is left out."""
    return {
        setting.name: setting.format(value)
        for setting, value in values.items()
        if value is not None
    }


def parse_options(options: Mapping[str, str], environ: Mapping[str, str]) -> SourceOptions:
    """Return the options of spark.readStream, checked.

    Args:
        options: as Spark hands them over; names in any case. An empty text is an option left out.
        environ: for SPANNER_EMULATOR_HOST.

    Raises:
        OptionError: an option is missing, unknown or malformed; the message names it.
    """
    texts = {name.lower(): text for name, text in options.items()}
    _refuse_unknown(texts)
    _require(texts)
    start, end = _value(texts, settings.START), _value(texts, settings.END)
    try:
        settings.require_end_after_start(start, end)
    except ValueError as error:
        raise OptionError(f"{error}.") from error
    reading = _value(texts, settings.READING)
    has_state_url = bool(texts.get(settings.STATE_URL.name))
    return SourceOptions(
        change_stream=_change_stream(texts, environ),
        pipeline=_value(texts, settings.PIPELINE),
        state_url=_value(texts, settings.STATE_URL) if has_state_url else _temporary_state_url(),
        keep_ns=ms_to_ns(_value(texts, settings.KEEP)),
        is_state_lasting=has_state_url,
        start=start if start in (NOW, EARLIEST) else watermark_for_start(parse_rfc3339(start)),
        end_ns=None if end is None else watermark_for_end(parse_rfc3339(end)),
        span_max_ns=ms_to_ns(_value(texts, settings.MAX_SPAN)),
        span_target=_span_target(texts),
        reading=reading,
        reader_memory_bytes=_value(texts, settings.READER_MEMORY) * _MIB,
        heartbeat_ms=settings.heartbeat_ms(_value(texts, settings.HEARTBEAT), reading),
        tasks_max=_value(texts, settings.TASKS),
        read=ReadOptions(
            concurrent_queries=_value(texts, settings.CONCURRENT_QUERIES),
            proof=_value(texts, settings.PROOF),
            audit=_value(texts, settings.AUDIT),
            traces=_value(texts, settings.TRACES),
        ),
        table=_value(texts, settings.TABLE),
        generation=_value(texts, settings.GENERATION),
        is_checkpoint_empty=_value(texts, settings.CHECKPOINT_IS_EMPTY),
        is_checkpoint_lost=_value(texts, settings.CHECKPOINT_IS_LOST),
        checkpoint_ns=_low_watermark(texts, settings.CHECKPOINT_WATERMARK),
        caught_up_at_ns=_low_watermark(texts, settings.CAUGHT_UP_AT),
        begun_epoch_ns=_low_watermark(texts, settings.BEGUN_EPOCH),
    )


def _refuse_unknown(texts: Mapping[str, str]) -> None:
    for name in texts:
        if name not in _ALL_NAMES:
            near = difflib.get_close_matches(name, _ALL_NAMES, n=1)
            hint = f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(OPTION_NAMES)}"
            raise OptionError(f"spanner_changes has no option {name!r}.", hint)


def _require(texts: Mapping[str, str]) -> None:
    missing = [setting.name for setting in settings.REQUIRED if not texts.get(setting.name)]
    if missing:
        raise OptionError(
            f"spanner_changes needs the option(s) {', '.join(missing)}.",
            f'Set them as in .option("{missing[0]}", "...")',
        )


def _value(texts: Mapping[str, str], setting: Setting[T]) -> T:
    """Return a setting's value, from its option or a former name of it."""
    names = [name for name in (setting.name, *setting.aliases) if texts.get(name)]
    if not names:
        return setting.default
    if len(names) > 1:
        raise OptionError(
            f"options {' and '.join(names)} are the same setting.", f"Leave {names[1]} out"
        )
    [name] = names
    try:
        if name in setting.aliases:
            return setting.aliases[name](texts[name])
        return setting.parse(texts[name])
    except ValueError as error:
        raise OptionError(f"option {name}: {error}.") from error


def _low_watermark(texts: Mapping[str, str], setting: Setting[str | None]) -> int | None:
    time = _value(texts, setting)
    return None if time is None else parse_rfc3339(time)


def _change_stream(texts: Mapping[str, str], environ: Mapping[str, str]) -> ChangeStream:
    return ChangeStream(
        **{setting.name: _value(texts, setting) for setting in settings.REQUIRED},
        database_role=_value(texts, settings.DATABASE_ROLE),
        priority=_value(texts, settings.PRIORITY),
        request_tag=_value(texts, settings.REQUEST_TAG),
        directed_read=_value(texts, settings.DIRECTED_READ),
        emulator_host=_value(texts, settings.EMULATOR_HOST)
        or environ.get("SPANNER_EMULATOR_HOST")
        or None,
    )


def _span_target(texts: Mapping[str, str]) -> SpanTarget | None:
    target = SpanTarget(
        _value(texts, settings.TARGET_RECORDS), ms_to_seconds(_value(texts, settings.TARGET_TIME))
    )
    return target if _value(texts, settings.EPOCH_HISTORY) else None


def _temporary_state_url() -> str:
    """Make a store for this query alone: the checkpoint is enough to find its lineage again."""
    folder = Path(tempfile.mkdtemp(prefix="slackwater-"))
    return f"sqlite:///{folder / 'state.db'}"
