"""Keys of the section source on a command line: `--source endpoint=localhost:15000`."""

import difflib
from collections.abc import Sequence
from typing import Final

from slackwater.errors import SettingsError
from slackwater.scheduler.source_settings import BoundedSettings, StreamSettings

# A command has options of its own for these.
_OWN: Final = ("project", "instance", "database", "change_stream", "table", "start", "end")


def source_values(
    texts: Sequence[str], model: type[BoundedSettings] = StreamSettings
) -> dict[str, str]:
    """Return keys and values, not checked yet.

    Args:
        texts: each KEY=VALUE.
        model: of the source, which has the keys.

    Raises:
        SettingsError: one is not, or source has no such key.
    """
    keys = [name for name in model.model_fields if name not in _OWN]
    values = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--source {text} is not KEY=VALUE.")
        if key not in keys:
            near = difflib.get_close_matches(key, keys, n=1)
            raise SettingsError(
                f"--source {key}: unknown key.",
                f"Did you mean {near[0]!r}?" if near else f"Known: {', '.join(keys)}",
            )
        values[key] = value
    return values
