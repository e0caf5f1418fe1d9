"""Checks everything that a pipeline needs, without writing anything: `slackwater check`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import slackwater
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.pipeline.source import check_new, check_omissions, connect
from slackwater.pipeline.spark.java import find_java
from slackwater.state.store import Store
from slackwater.timestamp import ns_to_seconds


@dataclass(frozen=True, slots=True)
class Check:
    """The result for one thing that a pipeline needs.

    Attributes:
        name: the thing, such as "metadata store".
        detail: what it is, for people; empty if there is a problem.
        problem: what is wrong with it; None if nothing is.
    """

    name: str
    detail: str
    problem: Exception | None = None


def checks(settings: Settings) -> Iterator[Check]:
    """Connect to everything that the pipeline needs; write nothing, and make no store."""
    yield _check("java", lambda: str(find_java()))
    yield Check("slackwater", str(Path(str(slackwater.__file__)).parent))
    sources: list[Any] = []

    def look_up() -> str:
        sources.append(connect(settings))
        spanner = sources[0]
        days = ns_to_seconds(spanner.description.retention_ns) / 86_400
        if settings.sink.needs_all_changes:
            check_omissions(settings, spanner)
        left_out = "".join(f", {name}" for name in spanner.description.omissions)
        return (
            f"{spanner.options.change_stream.path}, {spanner.description.dialect}, {days:g} d"
            f"{left_out and f', leaves changes out: {left_out[2:]}'}"
        )

    yield _check("change stream", look_up)
    if sources:

        def start() -> str:
            check_new(settings, sources[0])
            return settings.source.start

        yield _check("start", start)
    yield _check("metadata store", lambda: _check_store(settings))
    yield _check("sink", lambda: _check_sink(settings))


def _check(name: str, look: Callable[[], str]) -> Check:
    try:
        return Check(name, look())
    except Exception as error:  # noqa: BLE001 - each is reported, and the rest is checked
        return Check(name, "", error)


def _check_store(settings: Settings) -> str:
    url = settings.state.url
    path = url.removeprefix("sqlite:///")
    if path != url and not Path(path).exists():
        return f"{url} (will be created)"
    store = Store.open(url, migrate=False)
    try:
        pipeline = store.pipeline(settings.pipeline)
        return f"{store.url}, {'known pipeline' if pipeline else 'new pipeline'}"
    finally:
        store.close()


def _check_sink(settings: Settings) -> str:
    for text in (settings.sink.path, settings.sink.checkpoint):
        path = Path(text.removeprefix("file://"))
        if "://" in str(text) and not text.startswith("file://"):
            continue
        nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
        if not (nearest.is_dir() and os.access(nearest, os.W_OK)):
            raise SettingsError(f"{text} can't be written: {nearest} is not a writable folder.")
    settings.sink.check()
    return f"{settings.sink.format} in {settings.sink.path}"
