"""Avro as Kafka Connect's AvroConverter writes it; its AvroData makes the schemas."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import fastavro

from slackwater.spark_sink.avro.encoding import avro_bytes
from slackwater.spark_sink.avro.types import avro_name
from slackwater.spark_sink.connect.converter import Converter, Write
from slackwater.spark_sink.envelopes.avro_fields import Schema, nullable
from slackwater.spark_sink.envelopes.connect_schema import ConnectSchema

_PRIMITIVES: Final[Mapping[str, str]] = {"int32": "int", "int64": "long"}
# The properties in which a converter finds what Avro has no place for.
_PROPERTIES: Final = ("version", "parameters", "default", "name")


def avro_of_connect(schema: ConnectSchema) -> Schema:
    """Return the schema of a key or value, which is a struct."""
    return _named(schema, set())


def _text(schema: ConnectSchema) -> str:
    return json.dumps(avro_of_connect(schema))


def _writer(schema: ConnectSchema) -> Write:
    return partial(avro_bytes, fastavro.parse_schema(avro_of_connect(schema)))


def _field(schema: Mapping[str, Any], defined: set[str]) -> dict[str, Any]:
    kind, name = _named(schema, defined), avro_name(schema["field"])
    if not schema["optional"]:
        return {"name": name, "type": kind}
    if "default" in schema:
        return {"name": name, "type": [kind, "null"], "default": schema["default"]}
    return {"name": name, "type": nullable(kind), "default": None}


def _named(schema: Mapping[str, Any], defined: set[str]) -> Schema:
    """Return a schema without its null; a record that was defined before is only named."""
    properties = {f"connect.{p}": schema[p] for p in _PROPERTIES if p in schema}
    kind = schema["type"]
    if kind == "array":
        return {"type": "array", "items": nullable(_named(schema["items"], defined))}
    if kind != "struct":
        plain = _PRIMITIVES.get(kind, kind)
        return {"type": plain, **properties} if properties else plain
    parts = [avro_name(part) for part in schema["name"].split(".")]
    full_name = ".".join(parts)
    if full_name in defined:
        return full_name
    defined.add(full_name)
    return {
        "type": "record",
        "name": parts[-1],
        "namespace": ".".join(parts[:-1]),
        "fields": [_field(field, defined) for field in schema["fields"]],
        **properties,
    }


AVRO_CONVERTER: Final = Converter("AVRO", avro_name, _text, _writer)
