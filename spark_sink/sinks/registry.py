"""Finds the kinds of sinks: every concrete SinkSettings that a module of this folder defines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from inspect import isabstract
from typing import Annotated, Any, Final

from pydantic import BeforeValidator

from slackwater.spark_sink.modules import modules_in
from slackwater.spark_sink.sinks.sink_settings import SinkSettings
from slackwater.spark_sink.tables.registry import table_formats

DEFAULT_KIND: Final = "changelog"
SparkConf = Callable[[str], Mapping[str, str]]


@cache
def sink_kinds() -> Mapping[str, type[SinkSettings]]:
    """Return the settings of each kind of sink, by the kind's name."""
    classes: dict[str, type[SinkSettings]] = {}
    for module in modules_in("slackwater.spark_sink.sinks"):
        for value in vars(module).values():
            if (
                isinstance(value, type)
                and issubclass(value, SinkSettings)
                and not isabstract(value)
            ):
                assert classes.setdefault(value.kind_name(), value) is value  # noqa: S101
    return dict(sorted(classes.items()))


def spark_confs() -> Mapping[str, SparkConf]:
    """Return what Spark needs for each table format and kind of sink that needs something.

    Each is a function from Spark's version to Spark's settings, by the name of the format or kind.
    """
    confs: dict[str, SparkConf] = {
        name: table_format.spark_conf for name, table_format in table_formats().items()
    }
    for name, kind in sink_kinds().items():
        if kind.spark_conf is not SinkSettings.spark_conf:
            confs[name] = kind.spark_conf
    return confs


def parse_sink_settings(values: Any) -> Any:
    """Return the settings of the kind that the values name, or of a changelog.

    Raises:
        ValidationError: they do not suit the kind's fields.
        ValueError: some keys belong to other kinds.
    """
    if not isinstance(values, dict):
        return values
    kinds = sink_kinds()
    model = kinds.get(str(values.get("kind", DEFAULT_KIND)), kinds[DEFAULT_KIND])
    kinds_of = {
        key: [name for name, kind in kinds.items() if key in kind.model_fields]
        for key in values
        if key not in model.model_fields
    }
    misplaced = [key for key, names in kinds_of.items() if names]
    settings = model.model_validate({k: v for k, v in values.items() if k not in misplaced})
    for key in misplaced:
        if key in model.refused_keys:
            raise ValueError(model.refused_keys[key])
        together = [other for other in misplaced if kinds_of[other] == kinds_of[key]]
        takers = " and ".join(kinds_of[key])
        raise ValueError(f"{', '.join(together)} goes with kind {takers} only")
    return settings


AnySinkSettings = Annotated[SinkSettings, BeforeValidator(parse_sink_settings)]
