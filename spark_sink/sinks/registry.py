"""The registry of sinks: every concrete SinkSettings that a module of this folder defines."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, TypeAdapter, ValidationError

from slackwater.setting_values import KeysOfKinds
from slackwater.spark_sink.modules import classes_by_name
from slackwater.spark_sink.output.hadoop_connectors import CONNECTORS
from slackwater.spark_sink.sinks.sink_settings import SinkSettings, one_of
from slackwater.spark_sink.tables.registry import TABLE_FORMATS

DEFAULT_KIND: Final = "changelog"
SparkConf = Callable[[str], Mapping[str, str]]


@cache
def sink_kinds() -> Mapping[str, type[SinkSettings]]:
    """Return the settings of each kind of sink, by the kind's name, the default first."""
    return classes_by_name(
        "slackwater.spark_sink.sinks",
        SinkSettings,  # type: ignore[type-abstract]
        lambda kind: kind.kind_name(),
        DEFAULT_KIND,
    )


def spark_confs() -> Mapping[str, SparkConf]:
    """Return Spark's settings for each table format, kind of sink and object store.

    Each is a function from Spark's version to Spark's settings, by the name of the format, kind or
    connector.
    """
    confs: dict[str, SparkConf] = {
        name: table_format.spark_conf for name, table_format in TABLE_FORMATS.items()
    }
    for name, kind in sink_kinds().items():
        if kind.spark_conf is not SinkSettings.spark_conf:
            confs[name] = kind.spark_conf
    return confs | {connector.name: connector.spark_conf for connector in CONNECTORS}


class _KindOfSink(BaseModel):
    """The kind alone, which decides what the other keys may be."""

    kind: Annotated[str, BeforeValidator(lambda kind: one_of(kind, list(sink_kinds())))] = (
        DEFAULT_KIND
    )


def parse_sink_settings(values: Any) -> Any:
    """Return the settings of the kind that the values name, or of a changelog.

    Raises:
        ValidationError: there is no such kind, or the values do not suit its fields.
        ValueError: some keys belong to other kinds.
    """
    if not isinstance(values, dict):
        return values
    kinds = sink_kinds()
    model = kinds[_KindOfSink.model_validate(values).kind]
    kinds_of = {
        key: [name for name, kind in kinds.items() if key in kind.model_fields]
        for key in values
        if key not in model.model_fields
    }
    others = [key for key, names in kinds_of.items() if names]
    settings = model.model_validate({k: v for k, v in values.items() if k not in others})
    misplaced = [
        key
        for key in others
        if not _is_switched_off(kinds[kinds_of[key][0]].model_fields[key].annotation, values[key])
    ]
    for key in misplaced:
        if key in model.refused_keys:
            raise ValueError(model.refused_keys[key])
        together = [other for other in misplaced if kinds_of[other] == kinds_of[key]]
        takers = " and ".join(kinds_of[key])
        raise ValueError(f"{', '.join(together)} goes with kind {takers} only")
    return settings


def _is_switched_off(annotation: Any, value: object) -> bool:
    """Return whether a key of another kind is a switch that is off, which changes nothing."""
    try:
        return annotation is bool and not TypeAdapter(bool).validate_python(value)
    except ValidationError:
        return False


def _keys_of_kinds() -> Sequence[str]:
    """Return the keys of all kinds."""
    return list(dict.fromkeys(key for kind in sink_kinds().values() for key in kind.model_fields))


AnySinkSettings = Annotated[
    SinkSettings, BeforeValidator(parse_sink_settings), KeysOfKinds(_keys_of_kinds)
]
