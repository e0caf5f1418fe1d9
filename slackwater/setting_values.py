"""The forms of settings in YAML and in environment variables, and the base of their sections.

The sinks' settings use this, too, so it lies below the settings as a whole (slackwater.config).
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from slackwater.timestamp import DURATION, format_duration_ms, parse_duration_ms


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


def _in_lower_case(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _none_if_empty(value: object) -> object:
    return None if value == "" else value


# A folder, or what a URL of a file or a database in one begins with.
_HOME: Final = re.compile(r"(\w+:///?)?~[^/@]*/")
_DURATION_SCHEMA: Final = {"type": "string", "pattern": f"^{DURATION}$"}


class _Parsed(ABC):
    """An annotation of a number that is parsed before pydantic, which takes true for 1."""

    @abstractmethod
    def parse(self, value: object) -> int:
        """Return the number.

        Raises:
            ValueError: the value is not one, or out of bounds.
        """

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Parse first."""
        return core_schema.no_info_before_validator_function(self.parse, handler(source))


@dataclass(frozen=True)
class Duration(_Parsed):
    """An annotation of milliseconds that are written as a duration, such as 90s.

    Attributes:
        least_ms, most_ms: bounds; None for none.
    """

    least_ms: int = 0
    most_ms: int | None = None

    def parse(self, value: object) -> int:
        """Return the milliseconds."""
        duration_ms = parse_duration_ms(value)
        least = format_duration_ms(self.least_ms)
        if self.most_ms is not None and not self.least_ms <= duration_ms <= self.most_ms:
            raise ValueError(f"{value} is outside {least} to {format_duration_ms(self.most_ms)}")
        if duration_ms < self.least_ms:
            raise ValueError(f"{value} is less than {least}")
        return duration_ms

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the schema of a duration, for editors."""
        del schema, handler
        return {"anyOf": [_DURATION_SCHEMA, {"const": 0}]}


def is_duration(schema: Mapping[str, Any]) -> bool:
    """Return whether a JSON schema is that of a duration, which may be left out."""
    return schema == _DURATION_SCHEMA or any(map(is_duration, schema.get("anyOf", ())))


@dataclass(frozen=True)
class WholeNumber(_Parsed):
    """An annotation of a whole number, which may be written as text.

    Attributes:
        least, most: bounds.
    """

    least: int
    most: int

    def parse(self, value: object) -> int:
        """Return the number."""
        number = _whole_number(value)
        if not self.least <= number <= self.most:
            raise ValueError(f"{number} is outside {self.least} to {self.most}")
        return number

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Return the bounds, too."""
        return {**handler(schema), "minimum": self.least, "maximum": self.most}


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


Names = Annotated[tuple[str, ...], BeforeValidator(listed)]
TextMapping = Annotated[dict[str, str], BeforeValidator(from_json)]
AnyCase: Final = BeforeValidator(_in_lower_case)
# An environment variable, or an option, that is set and empty.
EmptyIsNone: Final = BeforeValidator(_none_if_empty)


class Section(BaseModel):
    """A section of the settings, which refuses keys that it does not have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _names_no_home(cls, value: object) -> object:
        if isinstance(value, str) and _HOME.match(value):
            raise ValueError(
                f"{value!r} has ~, which nothing but a shell replaces: write the folder out"
            )
        return value


@dataclass(frozen=True, slots=True)
class KeysOfKinds:
    """An annotation of a section that is one of several kinds.

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


def reason_of(problem: Mapping[str, Any]) -> str:
    """Return the message for a value from one of pydantic's errors()."""
    if problem["type"] == "string_pattern_mismatch":
        # An address may hold a password, even if it can't be parsed.
        shown = "it" if "@" in problem["input"] else repr(problem["input"])
        return f"{shown} must match {problem['ctx']['pattern']}"
    return str(problem["msg"]).removeprefix("Value error, ")
