"""The pipelines of a settings file: one, or several that share the keys beside them.

SLACKWATER_SOURCE_CHANGE_STREAM sets change_stream under source, SLACKWATER_PIPELINE sets pipeline;
the environment overrides the file. Under `pipelines` each name has the keys that differ:

    state: {url: postgresql+psycopg://...}
    source: {project: my-project, instance: my-instance, database: my-db}
    pipelines:
      orders: {source: {change_stream: Orders}, sink: {...}}
      customers: {source: {change_stream: Customers}, sink: {...}}
"""

import os
import stat
from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import BaseModel, ValidationError

from slackwater.config.settings import Settings
from slackwater.config.yaml_file import PREFIX, Key, explain, from_environment, read_yaml
from slackwater.errors import SettingsError
from slackwater.secrecy import keep_secret, secrets_in

_log = structlog.get_logger("slackwater.config.load")

PIPELINES: Final = "pipelines"
# A process has one of each.
_OF_PROCESS: Final = ("spark", "http", "log", "trace")
# The file that is read if none is named and it exists.
DEFAULT_FILE: Final = Path("slackwater.yaml")
_REQUIRED: Final = [n for n, field in Settings.model_fields.items() if field.is_required()]
_NAME_A_FILE: Final = "Name one with -c FILE; `slackwater init` writes slackwater.yaml"
# Pipelines that shared one of these would mix their output.
_OWN: Final = ("path", "checkpoint")


def load_settings(
    path: Path | None, environ: Mapping[str, str] = os.environ, *, pipeline: str | None = None
) -> Settings:
    """Return the settings of one pipeline.

    Args:
        path: a YAML file; None for DEFAULT_FILE, or where there is none the environment alone.
        environ: variables named SLACKWATER_...
        pipeline: its name, if the file has several.

    Raises:
        SettingsError: as load_pipelines(); or the file has several and none was named.
    """
    pipelines = load_pipelines(path, environ, pipeline=pipeline)
    if len(pipelines) > 1:
        names = ", ".join(settings.pipeline for settings in pipelines)
        raise SettingsError(
            f"{_place(file_or_default(path))} has several pipelines.",
            f"Name one with --pipeline: {names}",
        )
    return pipelines[0]


def load_pipelines(
    path: Path | None, environ: Mapping[str, str] = os.environ, *, pipeline: str | None = None
) -> tuple[Settings, ...]:
    """Return the settings of all pipelines, in the file's order.

    Args:
        path: a YAML file; None for DEFAULT_FILE, or where there is none the environment alone.
        environ: variables named SLACKWATER_...
        pipeline: the name of the only one to return; None for all.

    Raises:
        SettingsError: names every problem at once, with file, line, key and reason. Or the file
            does not have the pipeline.
    """
    path = file_or_default(path)
    pipelines = _all_pipelines(path, environ)
    chosen = tuple(each for each in pipelines if pipeline in (None, each.pipeline))
    if not chosen:
        names = ", ".join(each.pipeline for each in pipelines)
        raise SettingsError(f"{_place(path)} has no pipeline {pipeline!r}.", f"It has: {names}")
    return chosen


def _all_pipelines(path: Path | None, environ: Mapping[str, str]) -> tuple[Settings, ...]:
    values, lines = read_yaml(path) if path is not None else ({}, {})
    is_exposed = path is not None and _is_exposed(path, values)
    keep_secret(environ)
    if PIPELINES in values:
        pipelines = _several_pipelines(values, lines, path, environ)
    else:
        pipelines = (_parse(values, lines, path, environ),)
    if is_exposed and not all(settings.allow_readable_secrets for settings in pipelines):
        raise SettingsError(
            f"{path} holds a password or a key, and every user of this machine can read it.",
            f"chmod o-r {path}; or have the secret in a variable such as SLACKWATER_STATE_URL; or"
            " set allow_readable_secrets: true",
        )
    return pipelines


def _several_pipelines(
    values: dict[str, Any], lines: Mapping[Key, int], path: Path | None, environ: Mapping[str, str]
) -> tuple[Settings, ...]:
    several = values.pop(PIPELINES)
    _require_form(several, values, lines, path)
    _refuse_one_name_for_all(several, path, environ)
    pipelines: list[Settings] = []
    problems: list[str] = []
    for name, own in several.items():
        of_name = {key[2:]: line for key, line in lines.items() if key[:2] == (PIPELINES, name)}
        merged = _merged(values, {"pipeline": name, **own})
        try:
            pipelines.append(_parse(merged, {**lines, **of_name}, path, environ))
        except SettingsError as error:
            problems += [text for text in error.message.splitlines() if text not in problems]
    if problems:
        raise SettingsError("\n".join(problems))
    _require_own_places(pipelines, path)
    _require_one_mode(pipelines, path)
    return tuple(pipelines)


def _is_exposed(path: Path, values: Mapping[str, Any]) -> bool:
    """Return whether every user can read a settings file that holds a secret; warn of writers."""
    mode = path.stat().st_mode
    if mode & stat.S_IWOTH:
        _log.warning("every user can write the settings file", file=str(path))
    return bool(mode & stat.S_IROTH) and any(secrets_in(values))


def file_or_default(path: Path | None) -> Path | None:
    """Return the named settings file, or DEFAULT_FILE if it exists; None without one."""
    return DEFAULT_FILE if path is None and DEFAULT_FILE.exists() else path


def _parse(
    values: dict[str, Any], lines: Mapping[Key, int], path: Path | None, environ: Mapping[str, str]
) -> Settings:
    sections = {
        name for name, field in Settings.model_fields.items() if _is_section(field.annotation)
    }
    names = from_environment(values, sections, environ)
    keep_secret(values)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        if path is None and values.keys().isdisjoint(_REQUIRED):
            raise SettingsError("no settings file was named.", _NAME_A_FILE) from error
        hint = _NAME_A_FILE if path is None else ""
        problems = explain(error, _place(path), lines, names, Settings)
        raise SettingsError(problems, hint) from error
    # With the JSON of variables.
    keep_secret(settings.model_dump(serialize_as_any=True))
    return settings


def _require_form(
    several: Any, values: Mapping[str, Any], lines: Mapping[Key, int], path: Path | None
) -> None:
    """Check that `pipelines` maps names to sections of settings.

    Raises:
        SettingsError: it does not; names every problem.
    """
    problems: list[tuple[Key, str]] = []
    if "pipeline" in values:
        problems.append((("pipeline",), "can't be set beside pipelines, which has the names"))
    if not isinstance(several, dict) or not several:
        problems.append(((PIPELINES,), "is not a mapping of names to settings"))
        several = {}
    for name, own in several.items():
        if not isinstance(own, dict):
            reason = "is not a mapping such as {source: ..., sink: ...}"
            problems.append(((PIPELINES, str(name)), reason))
            continue
        problems += [
            ((PIPELINES, str(name), key), "a process has only one: move it out of the pipeline")
            for key in _OF_PROCESS
            if key in own
        ]
    if problems:
        raise SettingsError(
            "\n".join(
                f"{_place(path)}:{lines.get(key, 1)}: {'.'.join(key)}: {reason}"
                for key, reason in problems
            )
        )


def _refuse_one_name_for_all(
    several: Mapping[str, Any], path: Path | None, environ: Mapping[str, str]
) -> None:
    """Refuse a variable that would name every one of several pipelines.

    Raises:
        SettingsError: it is set.
    """
    for variable in environ:
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX).lower() == "pipeline":
            raise SettingsError(
                f"{variable} can't be set beside {PIPELINES} in {_place(path)}, which has the"
                " names.",
                f"Unset it; --pipeline chooses one of: {', '.join(map(str, several))}",
            )


def _require_own_places(pipelines: Sequence[Settings], path: Path | None) -> None:
    for one, other in combinations(pipelines, 2):
        for name in _OWN:
            shared = getattr(one.sink, name)
            if shared == getattr(other.sink, name):
                raise SettingsError(
                    f"{_place(path)}: {one.pipeline} and {other.pipeline} both have sink.{name}"
                    f" {shared}.",
                    "Give each pipeline its own",
                )


def _require_one_mode(pipelines: Sequence[Settings], path: Path | None) -> None:
    """Check that all pipelines have the same file mode: a process has one for all its files.

    Raises:
        SettingsError: they don't.
    """
    modes = {settings.pipeline: settings.sink.file_mode for settings in pipelines}
    if len(set(modes.values())) > 1:
        named = ", ".join(f"{name} {mode}" for name, mode in modes.items())
        raise SettingsError(
            f"{_place(path)}: sink.file_mode differs between pipelines: {named}.",
            "Give all pipelines of a file the same",
        )


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shared settings, overridden by a pipeline's own, section by section."""
    merged = deepcopy(dict(shared))
    for key, value in own.items():
        inherited = merged.get(key)
        if isinstance(inherited, dict) and isinstance(value, dict):
            merged[key] = {**inherited, **value}
        else:
            merged[key] = deepcopy(value)
    return merged


def _is_section(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _place(path: Path | None) -> str:
    return str(path) if path is not None else "the environment"
