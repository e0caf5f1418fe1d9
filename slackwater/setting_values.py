"""How settings are written in YAML and in environment variables, and the base of their sections.

The sinks' settings use this, too, so it lies below the settings as a whole (slackwater.config).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic.fields import FieldInfo

from slackwater.timestamp import parse_duration_ms


def from_json(value: object) -> object:
    """Return the mapping that an environment variable holds as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        # Not the value, which may hold a password.
        raise ValueError(f"is not valid JSON: {error}") from error


def listed(value: object) -> object:
    """Return the list that an environment variable holds with commas."""
    return value.split(",") if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]
TextMapping = Annotated[dict[str, str], BeforeValidator(from_json)]


class Section(BaseModel):
    """A section of the settings, which refuses keys that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True)


@dataclass(frozen=True, slots=True)
class KeysOfKinds:
    """Annotates a section that is one of several kinds.

    Attributes:
        keys: returns those of all kinds.
    """

    keys: Callable[[], Sequence[str]]


def keys_of(section: FieldInfo) -> Sequence[str]:
    """Return the keys that a section may have, from which messages suggest a near one."""
    for annotation in section.metadata:
        if isinstance(annotation, KeysOfKinds):
            return annotation.keys()
    kind = section.annotation
    if isinstance(kind, type) and issubclass(kind, Section):
        return list(kind.model_fields)
    return []
