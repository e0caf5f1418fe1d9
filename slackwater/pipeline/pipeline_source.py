"""The source of a pipeline, whatever it is: looked up, with a clock, a start and an end."""

from importlib import import_module
from typing import Any, Final, Protocol

import pyarrow as pa
import structlog

from slackwater.config.settings import Settings
from slackwater.extras import missing_error
from slackwater.pipeline.source import SourceHandle
from slackwater.reader.errors import StartTooOldError
from slackwater.scheduler.change_source import ReadableSource
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.options import SourceOptions
from slackwater.scheduler.read_options import NOW
from slackwater.timestamp import floor_to_us, format_rfc3339, parse_rfc3339, seconds_to_ns

_log = structlog.get_logger("slackwater.pipeline.pipeline_source")


class PipelineSource(Protocol):
    """A source that was looked up and can be read."""

    @property
    def options(self) -> SourceOptions[Any]:
        """The options of the Spark source."""

    @property
    def format(self) -> str:
        """The name of the Spark source."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""

    @property
    def has_tables(self) -> bool:
        """Whether its changes are of tables whose rows can be read, too."""

    @property
    def is_cut_by_time(self) -> bool:
        """Whether an epoch holds the changes of a time, and no others."""

    @property
    def retention_ns(self) -> int | None:
        """The time for which changes can be read; None if it is not known."""

    def changes(self) -> ReadableSource:
        """Return it as the scheduler's source."""

    def clock_ns(self) -> int:
        """Read its clock."""

    def close(self) -> None:
        """Close the connection to it."""

    def check(self, settings: Settings) -> None:
        """Check that it shows what the pipeline needs.

        Raises:
            ReaderError: it does not.
        """

    def check_new(self, settings: Settings) -> StartTooOldError | None:
        """Check that a new pipeline can start at its start.

        Returns:
            That the start is too old, if the pipeline may have begun.

        Raises:
            ReaderError, SettingsError: it can't.
        """

    def with_options(self, settings: Settings) -> "PipelineSource":
        """Return the same with the options of other settings."""

    def text(self, settings: Settings) -> str:
        """Return what was looked up, for people.

        Raises:
            ReaderError: it does not show what the pipeline needs.
        """


# Loaded when needed: Bigtable's client comes with an extra.
_MODULES: Final = {
    "spanner": "slackwater.pipeline.source",
    "bigtable": "slackwater.pipeline.bigtable",
}


def connect_source(settings: Settings) -> PipelineSource:
    """Look the source up; nothing is written anywhere.

    Raises:
        ReaderError: it does not exist, may not be read or can't be reached.
        MissingExtraError: its client is not installed.
    """
    try:
        module = import_module(_MODULES[settings.source.kind])
    except ModuleNotFoundError as error:
        raise missing_error([settings.source.kind]) from error
    connected: PipelineSource = module.connect(settings)
    return connected


def with_start_fixed(
    settings: Settings, source: PipelineSource, seconds_ago: float
) -> tuple[Settings, PipelineSource]:
    """Return settings and source of a new pipeline whose start `now` is the time of its command.

    Spark starts, and perhaps fails, before the first epoch is planned. What is committed meanwhile
    belongs to the pipeline. An initial scan chooses its own time whenever it begins: what was
    committed before is in its rows, and they can be read for as long as Spanner has versions.

    Args:
        settings, source: the pipeline's.
        seconds_ago: how long ago the command was given.

    Raises:
        ReaderError: the source does not answer.
    """
    if settings.source.start != NOW or settings.initial_scan != "no":
        return settings, source
    changes = source.changes()
    asked_ns = source.clock_ns() - seconds_to_ns(seconds_ago)
    # The stream may have been created after the command, which waited for it.
    start = format_rfc3339(floor_to_us(max(asked_ns, changes.earliest_start_ns())))
    _log.info("a new pipeline starts now", pipeline=settings.pipeline, start=start)
    section = settings.source.model_copy(update={"start": start})
    settings = settings.model_copy(update={"source": section})
    return settings, source.with_options(settings)


def last_watermark_ns(
    settings: Settings, source: PipelineSource, *, until_caught_up: bool
) -> int | None:
    """Return the pipeline's last low watermark, None for none.

    It is source.end, or with until_caught_up the source's clock now, if that is earlier.
    """
    ends = [] if settings.source.end is None else [parse_rfc3339(settings.source.end)]
    if until_caught_up:
        ends.append(source.clock_ns())
    return watermark_for_end(min(ends)) if ends else None


def with_tables(source: PipelineSource) -> SourceHandle:
    """Return a source that has tables."""
    assert isinstance(source, SourceHandle)  # noqa: S101 - no other one has
    return source
