"""The log: a line per event to standard error, as text or JSON; never a record's values."""

import logging
from collections import deque
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from slackwater import log_lines
from slackwater.secrecy import masked

_RECENT_MAX: Final = 50

# The last warnings and errors, for the page.
RECENT: Final[deque[dict[str, Any]]] = deque(maxlen=_RECENT_MAX)


def configure(*, level: str = "info", log_format: str = "console") -> None:
    """Send the logs of this program and of Spark's workers, and warnings, to standard error.

    Args:
        level: debug, info, warning or error; applies to this program's own lines.
        log_format: console for key=value, json for a JSON object per line.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    shared = [*log_lines.EVENT_PROCESSORS, _remember]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
    )
    root = logging.getLogger()
    root.handlers = [log_lines.handler(log_format, shared)]
    root.setLevel(logging.WARNING)
    logging.getLogger("slackwater").setLevel(number)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    log_lines.require_of_workers(level, log_format)


def _remember(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    del logger, method
    if event.get("level") in ("warning", "error", "critical"):
        RECENT.append({key: _plain(value) for key, value in event.items() if key[:1] != "_"})
    return event


def _plain(value: object) -> object:
    return value if isinstance(value, bool | int | float | None) else masked(str(value))
