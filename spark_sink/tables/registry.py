"""Finds the table formats: every TableFormat that a module of this folder defines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from slackwater.spark_sink.modules import classes_by_name
from slackwater.spark_sink.tables.table_format import TableFormat


@cache
def table_formats() -> Mapping[str, type[TableFormat]]:
    """Return the table formats by name."""
    return classes_by_name(
        "slackwater.spark_sink.tables",
        TableFormat,  # type: ignore[type-abstract]
        lambda table_format: table_format.using,
    )
