"""The types of settings that the sinks' settings do not use; see slackwater.setting_values."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from pydantic import BeforeValidator, Field

from slackwater.scheduler.source_settings import Setting
from slackwater.timestamp import datetime_to_ns, format_rfc3339


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


def yes_no(value: object) -> object:
    """Return yes or no as text: YAML reads a plain yes as true."""
    return {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value


def parsed_by(setting: Setting[Any]) -> BeforeValidator:
    """Return the validator of a setting that the Spark source has, too: it parses both."""
    return BeforeValidator(setting.parse)


def default_of(setting: Setting[Any]) -> Any:
    """Return the field of a setting that the Spark source has, too: default and description."""
    return Field(default=setting.default, description=setting.doc)
