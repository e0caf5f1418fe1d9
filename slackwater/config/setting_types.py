"""The types of settings: how each can be written in a YAML file or an environment variable."""

from __future__ import annotations

import json
from datetime import date, datetime
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from slackwater.scheduler.source_settings import Setting
from slackwater.timestamp import datetime_to_ns, format_rfc3339, parse_duration_ms


def as_text(value: object) -> object:
    """Return a time as text: YAML reads an unquoted time as a datetime, and a day as a date."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        return format_rfc3339(datetime_to_ns(value))
    if isinstance(value, date):
        # Without a zone it would mean another time on each machine.
        raise ValueError(  # noqa: TRY004 - pydantic collects ValueErrors
            f"{value} has no time and zone, as in 2026-01-31T09:00:00Z"
        )
    return value


def from_json(value: object) -> object:
    """Return the mapping that an environment variable holds as JSON."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is not valid JSON: {error}") from error


def listed(value: object) -> object:
    """Return the list that an environment variable holds with commas."""
    return value.split(",") if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
DurationMs = Annotated[int, BeforeValidator(parse_duration_ms)]


def yes_no(value: object) -> object:
    """Return yes or no as text: YAML reads a plain yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def parsed_by(setting: Setting[Any]) -> BeforeValidator:
    """Return the validator of a setting that the Spark source has, too: it parses both."""
    return BeforeValidator(setting.parse)


def default_of(setting: Setting[Any]) -> Any:
    """Return the field of a setting that the Spark source has, too: default and description."""
    return Field(default=setting.default, description=setting.doc)


class Section(BaseModel):
    """A part of the settings; keys that it does not have are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
