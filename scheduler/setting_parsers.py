"""Parsers of settings: from what YAML or an option's text holds to a checked value.

Each takes any object and raises ValueError, with what is allowed, for one that it refuses. Those
with parameters return such a function.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

from slackwater.reader.change_stream import ChangeStream
from slackwater.reader.errors import ChangeStreamNameError
from slackwater.timestamp import format_duration_ms, parse_duration_ms, parse_rfc3339

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_PIPELINE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
# Stand in for the names that are not being checked, so that each name is checked by itself.
_VALID_NAMES: Final[Mapping[str, Any]] = {
    "project": "some-project",
    "instance": "some-instance",
    "database": "some-database",
    "change_stream": "some_stream",
}


def parse_text(value: object) -> str:
    """Return a text as it is."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not text: write it in quotes")  # noqa: TRY004 - of the user
    return value


def optional(parse: Callable[[object], T]) -> Callable[[object], T | None]:
    """Return a parser that takes None and the empty text as not set."""

    def parse_optional(value: object) -> T | None:
        return None if value is None or value == "" else parse(value)

    return parse_optional


def name_of(part: str) -> Callable[[object], str]:
    """Return the parser of a part of the change stream's address."""

    def parse(value: object) -> str:
        name = parse_text(value)
        try:
            ChangeStream(**{**_VALID_NAMES, part: name})
        except ChangeStreamNameError as error:
            raise ValueError(str(error)) from error
        return name

    return parse


def parse_pipeline(value: object) -> str:
    """Return a pipeline's name, which needs no quoting anywhere."""
    name = parse_text(value)
    if not _PIPELINE.fullmatch(name):
        raise ValueError(f"{name!r} must match {_PIPELINE.pattern}")
    return name


def parse_time(value: object) -> str:
    """Return the text of an RFC 3339 time as it is."""
    text = parse_text(value)
    parse_rfc3339(text)
    return text


def parse_url(value: object) -> str:
    """Return a URL as it is; the metadata store checks it when it is opened."""
    text = parse_text(value)
    if not text:
        raise ValueError("is empty")
    return text


def integer_in(least: int, most: int) -> Callable[[object], int]:
    """Return the parser of a whole number from least to most."""

    def parse(value: object) -> int:
        number = _whole_number(value)
        if not least <= number <= most:
            raise ValueError(f"{number} is outside {least} to {most}")
        return number

    return parse


def _whole_number(value: object) -> int:
    try:
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str):
            whole, _, fraction = value.strip().partition(".")
            return int(value if fraction.strip("0") else whole)
        if isinstance(value, float) and value.is_integer():
            return int(value)
    except ValueError:
        pass
    raise ValueError(f"{value!r} is not a whole number")


def duration_in(least_ms: int, most_ms: int) -> Callable[[object], int]:
    """Return the parser of a duration from least_ms to most_ms, in milliseconds."""

    def parse(value: object) -> int:
        duration_ms = parse_duration_ms(value)
        if not least_ms <= duration_ms <= most_ms:
            least, most = format_duration_ms(least_ms), format_duration_ms(most_ms)
            raise ValueError(f"{value} is outside {least} to {most}")
        return duration_ms

    return parse


def number_of(unit: str, parse: Callable[[object], int]) -> Callable[[str], int]:
    """Return the parser of a former option that held a duration as a number of one unit."""

    def parse_number(text: str) -> int:
        try:
            parse_duration_ms(f"{text.strip()}{unit}")
        except ValueError as error:
            raise ValueError(f"{text!r} is not a number") from error
        return parse(f"{text.strip()}{unit}")

    return parse_number


def parse_boolean(value: object) -> bool:
    """Return the value of true or false, in any case."""
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(f"{value!r} is neither true nor false")
    return text == "true"


def format_boolean(value: bool | None) -> str:
    """Return true or false as parse_boolean reads it."""
    return str(value).lower()


def member_of(kind: type[E]) -> Callable[[object], E]:
    """Return the parser of the members of an enumeration, in any case."""

    def parse(value: object) -> E:
        try:
            return kind(str(value).lower())
        except ValueError:
            raise ValueError(f"{value!r} is not one of {', '.join(kind)}") from None

    return parse


def parse_priority(value: object) -> str:
    """Return one of low, medium and high, in lower case."""
    text = str(value).lower()
    if text not in ("low", "medium", "high"):
        raise ValueError(f"{value!r} is not one of low, medium, high")
    return text
