"""Logs: one line an event, key=value, to standard error; never a record's values."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(*, debug: bool) -> None:
    """Send this program's logs, and the warnings of its parts, to standard error."""
    level = logging.DEBUG if debug else logging.INFO
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True)
    shared: list[Any] = [structlog.stdlib.add_log_level, stamp]
    render = structlog.processors.LogfmtRenderer(
        key_order=["timestamp", "level", "event"], bool_as_flag=False
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("slackwater").setLevel(level)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
