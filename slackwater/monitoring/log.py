"""Configures logs: a line per event to standard error, as text or JSON; never a record's values."""

from __future__ import annotations

import logging
import sys
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

_RECENT_MAX: Final = 50
_ORDER: Final = ["timestamp", "level", "event", "pipeline", "epoch"]

# The last warnings and errors, for the page.
RECENT: Final[deque[dict[str, Any]]] = deque(maxlen=_RECENT_MAX)


def configure(*, level: str = "info", log_format: str = "console") -> None:
    """Send this program's logs, and the warnings of its libraries, to standard error.

    Args:
        level: debug, info, warning or error; applies to this program's own lines.
        log_format: console for key=value, json for a JSON object per line.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _remember,
    ]
    render: Any = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.processors.LogfmtRenderer(key_order=_ORDER, drop_missing=True)
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
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
    logging.getLogger("slackwater").setLevel(number)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)


def _remember(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    if event.get("level") in ("warning", "error", "critical"):
        RECENT.append({key: _plain(value) for key, value in event.items() if key[:1] != "_"})
    return event


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | str | None) else str(value)
