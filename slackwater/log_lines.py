"""The format of log lines, the same from this program and from Spark's Python workers."""

import io
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import structlog

from slackwater.printing import in_one_line
from slackwater.secrecy import masked

# Sets the level and format of Spark's workers, except those of a notebook, which has its own log.
_VARIABLE: Final = "SLACKWATER_WORKER_LOG"
# Further variables of the workers' environment.
WORKER_ENVIRONMENT: Final[dict[str, str]] = {}
_ORDER: Final = ["timestamp", "level", "event", "pipeline", "epoch"]
# The processors of each event before its line is made.
EVENT_PROCESSORS: Final[Sequence[Any]] = (
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)


def write_utf8() -> None:
    """Write UTF-8 in any locale: names and values have characters of all kinds."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


class _MaskingFormatter(structlog.stdlib.ProcessorFormatter):
    """A formatter of lines without secrets, safe for a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return in_one_line(masked(super().format(record)))


def handler(log_format: str, processors: Sequence[Any] = EVENT_PROCESSORS) -> logging.Handler:
    """Return a handler that writes a line per event to standard error.

    Args:
        log_format: console for key=value, json for a JSON object per line.
        processors: those of events of the standard library's loggers.
    """
    render: Any = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.LogfmtRenderer(key_order=_ORDER, drop_missing=True)
    )
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(
        _MaskingFormatter(
            foreign_pre_chain=processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    return lines


def require_of_workers(level: str, log_format: str) -> None:
    """Set the level and format of log lines of Spark's workers; before Spark starts."""
    WORKER_ENVIRONMENT[_VARIABLE] = f"{level} {log_format}"


def required(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the level and the format that an environment of workers requires; None for any."""
    level, _, log_format = environment.get(_VARIABLE, "").partition(" ")
    return (level, log_format) if log_format else None


def configure_worker() -> None:
    """Write this worker's lines as the program that started Spark requires, if it does."""
    form = required(os.environ)
    if form is not None:
        level, log_format = form
        logging.getLogger().handlers = [handler(log_format)]
        logging.getLogger("slackwater").setLevel(level.upper())
