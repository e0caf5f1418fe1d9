"""Requests to read tables again, in the metadata store, for the pipeline's owner."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from slackwater.commands.chosen_tables import chosen_tables
from slackwater.commands.stored_pipeline import open_pipeline
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.pipeline.lease_holder import has_live_owner
from slackwater.pipeline.source import connect
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.state.rescan_models import REPAIR, REQUESTED, Rescan, RescanState
from slackwater.state.rescans import request_rescans, rescans, stop_rescans


def rescan(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    """Request that tables be read again while the changes go on.

    Args:
        settings: the pipeline's.
        names: globs of full table names.

    Yields:
        Lines for the user.

    Raises:
        SettingsError: the sink can't be given rows again, or the store does not know the pipeline.
        NoTableError: the change stream watches no table with such a name.
        ReaderError, StateError: Spanner or the store can't be reached.
    """
    _require_rescans(settings)
    source = connect(settings)
    with closing(source.connection):
        tables = [table.name for table in chosen_tables(settings, source, names)]
    yield from request(settings, tables, REQUESTED)


def repair(settings: Settings, tables: Sequence[str]) -> Iterator[str]:
    """Request that tables whose mirrors differ be read again; see request()."""
    return request(settings, tables, REPAIR)


def request(settings: Settings, tables: Sequence[str], reason: str) -> Iterator[str]:
    """Record requests for tables by their full names, and yield a line for each.

    Raises:
        SettingsError: the store does not know the pipeline.
        StateError: the store can't be reached.
    """
    with open_pipeline(settings) as (store, pipeline):
        now_ns = time.time_ns()
        request_rescans(store, [Rescan(pipeline.name, name, now_ns, reason) for name in tables])
        runs = has_live_owner(pipeline)
        when = "requested; see `slackwater status`" if runs else "requested for when it runs again"
        for name in tables:
            yield f"{pipeline.name}: rescan of {name} {when}"


def stop(settings: Settings, names: Sequence[str]) -> Iterator[str]:
    """Stop rescans, and yield a line for each; rows that they have corrected stay.

    Args:
        settings: the pipeline's.
        names: globs of full table names.

    Raises:
        SettingsError: the store does not know the pipeline.
        StateError: the store can't be reached.
    """
    with open_pipeline(settings) as (store, pipeline):
        running = rescans(store, pipeline.name, [RescanState.RUNNING])
        wanted = RecordFilter(tuple(names))
        tables = [one.table for one in running if wanted.keeps_table(one.table)]
        stopped = stop_rescans(store, pipeline.name, tables)
    for name in stopped:
        yield f"{pipeline.name}: rescan of {name} stopped"
    if not stopped:
        yield f"{pipeline.name}: no rescan of {', '.join(names)} is running"


def _require_rescans(settings: Settings) -> None:
    if not settings.sink.has_rescans:
        raise SettingsError(
            f"pipeline {settings.pipeline!r} has sink.kind {settings.sink.kind}: only mirrors"
            " and changelogs can be given rows again.",
        )
