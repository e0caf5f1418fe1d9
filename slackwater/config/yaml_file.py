"""The settings' YAML and environment, read and checked with helpful messages.

pydantic-settings is not used for this: its messages have neither lines nor near names, and its
environment reader ignores unknown names.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from slackwater.errors import SettingsError
from slackwater.secrecy import masked
from slackwater.setting_values import Section, keys_of, reason_of

PREFIX: Final = "SLACKWATER_"
Key = tuple[str, ...]


class _Loader(yaml.SafeLoader):
    """A YAML loader that leaves times as written: PyYAML's datetimes lose the nanoseconds."""


_LOADED_TAGS: Final = {
    letter: [(tag, pattern) for tag, pattern in tags if tag != "tag:yaml.org,2002:timestamp"]
    for letter, tags in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.yaml_implicit_resolvers = _LOADED_TAGS


def read_yaml(path: Path) -> tuple[dict[str, Any], dict[Key, int]]:
    """Return a YAML file's mapping, and the line of each key.

    Raises:
        SettingsError: the file is missing, is not valid YAML, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        hint = "Name one with -c; `slackwater init` writes one" if not path.exists() else ""
        raise SettingsError(f"the settings file {path} can't be read: {reason}.", hint) from error
    try:
        node = yaml.compose(text, Loader=_Loader)
        values = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.YAMLError as error:
        raise SettingsError(
            f"the settings file {path} is not valid YAML: {_problem(error)}"
        ) from error
    if not isinstance(values, dict):
        raise SettingsError(
            f"the settings file {path} has no keys.",
            "It needs at least pipeline:, source: and sink:",
        )
    return values, _lines(node, ())


def _problem(error: yaml.YAMLError) -> str:
    """Return the problem and its place, without the text there, which may hold a password."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    place = "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
    return f"{problem or 'it holds signs that YAML does not allow'}{place}"


def _lines(node: Any, key: Key) -> dict[Key, int]:
    lines: dict[Key, int] = {}
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            inner = (*key, str(name.value))
            if inner in lines:
                raise SettingsError(
                    f"{'.'.join(inner)} is set twice, in lines {lines[inner]} and"
                    f" {name.start_mark.line + 1}."
                )
            lines[inner] = name.start_mark.line + 1
            lines |= _lines(value, inner)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            inner = (*key, str(index))
            lines[inner] = value.start_mark.line + 1
            lines |= _lines(value, inner)
    return lines


def from_environment(
    values: dict[str, Any],
    sections: Collection[str],
    environ: Mapping[str, str],
) -> dict[Key, str]:
    """Override the file's values by the environment's; return the variable of each such key.

    A variable whose name fits no key stays in values under its own name, so that it is refused
    like any unknown key.
    """
    names: dict[Key, str] = {}
    for variable in sorted(environ):
        if not variable.startswith(PREFIX):
            continue
        section, _, rest = variable.removeprefix(PREFIX).lower().partition("_")
        key: Key = (
            (section, rest)
            if rest and section in sections
            else (variable.removeprefix(PREFIX).lower(),)
        )
        names[key] = variable
        value: Any = environ[variable]
        if key == ("spark", "conf"):
            try:
                value = yaml.safe_load(value)
            except yaml.YAMLError as error:
                raise SettingsError(
                    f"{variable} is not a valid YAML mapping: {_problem(error)}"
                ) from error
        if len(key) == 2:
            inner = values.get(key[0]) or {}
            # A value that is not a section in the file stays, to be refused.
            values[key[0]] = {**inner, key[1]: value} if isinstance(inner, dict) else inner
        else:
            values[key[0]] = value
    return names


def explain(
    error: ValidationError,
    where: str,
    lines: Mapping[Key, int],
    names: Mapping[Key, str],
    model: type[Section],
) -> str:
    """Return the problems, each on its own line: place, key, reason."""
    problems = []
    for item in error.errors():
        key = tuple(str(part) for part in item["loc"])
        place = _place(key, where, lines, names)
        problems.append(f"{place}: {'.'.join(key) or 'settings'}: {_reason(item, key, model)}")
    return masked("\n".join(problems))


def _place(key: Key, where: str, lines: Mapping[Key, int], names: Mapping[Key, str]) -> str:
    """Return the variable or the line of a key, or of the nearest key around it."""
    for length in range(len(key), 0, -1):
        around = key[:length]
        if around in names:
            return names[around]
        if around in lines:
            return f"{where}:{lines[around]}"
    return where


def _reason(item: Mapping[str, Any], key: Key, model: type[Section]) -> str:
    match item["type"]:
        case "extra_forbidden":
            # It may be a key of another kind.
            others = [name for name in _siblings(key, model) if name != key[-1]]
            near = difflib.get_close_matches(key[-1], others, n=1)
            return f"unknown key{f'; did you mean {near[0]!r}?' if near else ''}"
        case "missing":
            return "is missing"
        case _:
            return reason_of(item)


def _siblings(key: Key, model: type[Section]) -> Sequence[str]:
    if len(key) == 1:
        return list(model.model_fields)
    section = model.model_fields.get(key[0])
    return [] if section is None else keys_of(section)
