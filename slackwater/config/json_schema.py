"""The JSON schema of the settings file, by which an editor completes and checks it."""

from collections.abc import Mapping
from typing import Any, Final

from slackwater.config.load import PIPELINES
from slackwater.config.settings import SOURCE_KINDS, Settings, SourceSettings
from slackwater.scheduler.source_settings import PIPELINE_NAME
from slackwater.setting_values import is_duration
from slackwater.spark_sink.sinks.registry import DEFAULT_KIND, sink_kinds
from slackwater.spark_sink.sinks.sink_settings import SinkSettings
from slackwater.timestamp import format_duration_ms

_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_DEFINITIONS: Final = "$defs"
_REFERENCE: Final = "$ref"


def settings_schema() -> dict[str, Any]:
    """Return the schema of a file with one pipeline, or several that share the keys beside them."""
    one = whole_schema(Settings.model_json_schema())
    one["properties"]["source"] = {
        "anyOf": [_of_source(name, kind) for name, kind in SOURCE_KINDS.items()]
    }
    one["properties"]["sink"] = {
        "anyOf": [_of_kind(name, kind) for name, kind in sink_kinds().items()]
    }
    # A pipeline inherits missing keys from those that all share.
    part = _without_required(one)
    several = {
        **part,
        "properties": {
            **part["properties"],
            PIPELINES: {
                "type": "object",
                "propertyNames": {"pattern": PIPELINE_NAME},
                "additionalProperties": part,
            },
        },
        "required": [PIPELINES],
    }
    return {"$schema": _DIALECT, "title": "slackwater.yaml", "anyOf": [one, several]}


def _of_source(name: str, kind: type[SourceSettings]) -> dict[str, Any]:
    """Return the schema of one kind of source."""
    return {**whole_schema(kind.model_json_schema()), "title": f"kind: {name}"}


def _of_kind(name: str, kind: type[SinkSettings]) -> dict[str, Any]:
    """Return the schema of one kind of sink."""
    schema = whole_schema(kind.model_json_schema())
    properties = schema["properties"]
    properties["kind"] = {"const": name, "default": name}
    if kind.formats:
        properties["format"] = {**properties["format"], "enum": list(kind.formats)}
    schema["title"] = f"kind: {name}"
    if name != DEFAULT_KIND:
        schema["required"] = ["kind", *schema["required"]]
    return schema


def whole_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's schema with its definitions in the places that name them.

    Durations have their defaults as a file has them, such as 30s.

    Args:
        schema: of a pydantic model.
    """
    definitions = schema.get(_DEFINITIONS, {})

    def resolved(value: Any) -> Any:
        if isinstance(value, list):
            return [resolved(item) for item in value]
        if not isinstance(value, dict):
            return value
        own = {name: resolved(item) for name, item in value.items() if name != _REFERENCE}
        if _REFERENCE in value:
            own = {**resolved(definitions[value[_REFERENCE].rpartition("/")[2]]), **own}
        return _with_readable_default(own)

    whole: dict[str, Any] = resolved({k: v for k, v in schema.items() if k != _DEFINITIONS})
    return whole


def _with_readable_default(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema with a default in a file's form, and without a whole section's."""
    default = schema.get("default")
    if isinstance(default, dict) and default:
        return {name: item for name, item in schema.items() if name != "default"}
    if isinstance(default, int) and is_duration(schema):
        return {**schema, "default": format_duration_ms(default)}
    return schema


def _without_required(schema: Any) -> Any:
    """Return a schema in which no key is required."""
    if isinstance(schema, list):
        return [_without_required(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_required(item) for name, item in schema.items() if name != "required"}
