"""Keys of the section source on a command line: `--source endpoint=localhost:15000`."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Final

from slackwater.errors import SettingsError
from slackwater.scheduler.source_settings import StreamSettings

# A command has options of its own for these.
_OWN: Final = ("project", "instance", "database", "change_stream", "start", "end")
_KEYS: Final = [name for name in StreamSettings.model_fields if name not in _OWN]


def source_values(texts: Sequence[str]) -> dict[str, str]:
    """Return keys and values, not checked yet.

    Args:
        texts: each KEY=VALUE.

    Raises:
        SettingsError: one is not, or source has no such key.
    """
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--source {text} is not KEY=VALUE.")
        if key not in _KEYS:
            near = difflib.get_close_matches(key, _KEYS, n=1)
            raise SettingsError(
                f"--source {key}: unknown key.",
                f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(_KEYS)}",
            )
        values[key] = value
    return values
