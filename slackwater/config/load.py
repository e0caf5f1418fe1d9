"""The pipelines of a settings file: one, or several that share what stands beside them.

SLACKWATER_SOURCE_CHANGE_STREAM stands for change_stream under source, SLACKWATER_PIPELINE for
pipeline; the environment wins over the file. Under `pipelines` each name has what differs:

    state: {url: postgresql+psycopg://...}
    source: {project: p, instance: i, database: d}
    pipelines:
      orders: {source: {change_stream: Orders}, sink: {...}}
      customers: {source: {change_stream: Customers}, sink: {...}}
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from slackwater.config.settings import Settings
from slackwater.config.yaml_file import Key, explain, from_environment, read_yaml
from slackwater.errors import SettingsError

PIPELINES: Final = "pipelines"
# A process has one of each.
_OF_PROCESS: Final = ("spark", "http", "log", "trace")
# Two pipelines that shared one would mix what they write.
_OWN: Final = ("path", "checkpoint")


def load_settings(
    path: Path | None, environ: Mapping[str, str] = os.environ, *, pipeline: str | None = None
) -> Settings:
    """The settings of one pipeline.

    Args:
        path: a YAML file; None for the environment alone.
        environ: variables named SLACKWATER_...
        pipeline: which, where the file holds several.

    Raises:
        SettingsError: names every problem at once: file, line, key and what is wrong; or the file
            has no such pipeline, or several and none was named.
    """
    found = load_pipelines(path, environ)
    names = [settings.pipeline for settings in found]
    if pipeline is None and len(found) == 1:
        return found[0]
    if pipeline in names:
        return found[names.index(pipeline)]
    known = ", ".join(names)
    if pipeline is None:
        raise SettingsError(
            f"{_where(path)} has several pipelines.", f"Name one with --pipeline: {known}"
        )
    raise SettingsError(f"{_where(path)} has no pipeline {pipeline!r}.", f"It has: {known}")


def load_pipelines(
    path: Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[Settings, ...]:
    """The settings of all pipelines, in the file's order.

    Args:
        path: a YAML file; None for the environment alone.
        environ: variables named SLACKWATER_...

    Raises:
        SettingsError: names every problem at once: file, line, key and what is wrong.
    """
    values, lines = read_yaml(path) if path is not None else ({}, {})
    if PIPELINES not in values:
        return (_parse(values, lines, path, environ),)
    several = values.pop(PIPELINES)
    _check(several, values, lines, path)
    found: list[Settings] = []
    problems: list[str] = []
    for name, own in several.items():
        of_name = {key[2:]: line for key, line in lines.items() if key[:2] == (PIPELINES, name)}
        merged = _merged(values, {"pipeline": name, **own})
        try:
            found.append(_parse(merged, {**lines, **of_name}, path, environ))
        except SettingsError as error:
            problems += [text for text in error.message.splitlines() if text not in problems]
    if problems:
        raise SettingsError("\n".join(problems))
    _check_apart(found, path)
    return tuple(found)


def _parse(
    values: dict[str, Any], lines: Mapping[Key, int], path: Path | None, environ: Mapping[str, str]
) -> Settings:
    sections = {
        name for name, field in Settings.model_fields.items() if _is_section(field.annotation)
    }
    names = from_environment(values, sections, environ)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        raise SettingsError(explain(error, _where(path), lines, names, Settings)) from error


def _check(
    several: Any, values: Mapping[str, Any], lines: Mapping[Key, int], path: Path | None
) -> None:
    """The form of what stands under `pipelines`."""
    problems: list[tuple[Key, str]] = []
    if "pipeline" in values:
        problems.append((("pipeline",), "stands beside pipelines, which gives the names"))
    if not isinstance(several, dict) or not several:
        problems.append(((PIPELINES,), "is no mapping of names to what is theirs"))
        several = {}
    for name, own in several.items():
        if not isinstance(own, dict):
            what = "is no mapping such as {source: ..., sink: ...}"
            problems.append(((PIPELINES, str(name)), what))
            continue
        problems += [
            ((PIPELINES, str(name), key), "a process has one: move it out of the pipeline")
            for key in _OF_PROCESS
            if key in own
        ]
    if problems:
        raise SettingsError(
            "\n".join(
                f"{_where(path)}:{lines.get(key, 1)}: {'.'.join(key)}: {what}"
                for key, what in problems
            )
        )


def _check_apart(found: Sequence[Settings], path: Path | None) -> None:
    for one, other in combinations(found, 2):
        for name in _OWN:
            shared = getattr(one.sink, name)
            if shared == getattr(other.sink, name):
                raise SettingsError(
                    f"{_where(path)}: {one.pipeline} and {other.pipeline} both have sink.{name}"
                    f" {shared}.",
                    "Give each its own",
                )


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """What is shared, with a pipeline's own over it, section by section."""
    merged = deepcopy(dict(shared))
    for key, value in own.items():
        former = merged.get(key)
        if isinstance(former, dict) and isinstance(value, dict):
            merged[key] = {**former, **value}
        else:
            merged[key] = deepcopy(value)
    return merged


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _where(path: Path | None) -> str:
    return str(path) if path is not None else "the environment"
