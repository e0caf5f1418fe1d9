"""The types of settings: what a YAML file or a variable of the environment can hold of each."""

from __future__ import annotations

import json
import re
from datetime import date, datetime
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

from slackwater.timestamp import datetime_to_ns, format_rfc3339

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(value: object) -> int:
    """Milliseconds of a text such as 500ms, 1s, 10m, 2h; a bare 0 is no time at all."""
    if value == 0 and not isinstance(value, bool):  # YAML reads no and off as False
        return 0
    match = _DURATION.fullmatch(str(value))
    if match is None:
        raise ValueError(f"{value!r} is no duration such as 500ms, 1s or 10m")
    return round(float(match.group(1)) * _UNIT_MS[match.group(2)])


def as_text(value: object) -> object:
    """YAML reads an unquoted time as a datetime, and an unquoted day as a date."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return format_rfc3339(datetime_to_ns(value))
    if isinstance(value, date):
        # Without a zone it would mean another moment on each machine.
        raise ValueError(  # noqa: TRY004 - pydantic collects ValueErrors
            f"{value} has no time and zone, as in 2026-01-31T09:00:00Z"
        )
    return value


def from_json(value: object) -> object:
    """A variable of the environment holds a mapping as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is no JSON: {error}") from error


def listed(value: object) -> object:
    """A variable of the environment holds a list with commas."""
    return value.split(",") if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]


def yes_no(value: object) -> object:
    """YAML reads a plain yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


class Section(BaseModel):
    """A part of the settings: no other keys than its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)
