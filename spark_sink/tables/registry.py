"""Finds the table formats: every TableFormat that a module of this folder defines."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from inspect import isabstract

from slackwater.spark_sink.modules import modules_in
from slackwater.spark_sink.tables.table_format import TableFormat


@cache
def table_formats() -> Mapping[str, type[TableFormat]]:
    """Return the table formats by name."""
    classes: dict[str, type[TableFormat]] = {}
    for module in modules_in("slackwater.spark_sink.tables"):
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, TableFormat) and not isabstract(value):
                assert classes.setdefault(value.using, value) is value  # noqa: S101 - one a name
    return dict(sorted(classes.items()))
