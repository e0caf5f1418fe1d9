"""Protobuf as Kafka Connect's ProtobufConverter writes it, with its default settings.

Nothing tells NULL from the default of a type: 0, false, an empty text. A NULL in an array, at which
the converter ends, is written so, too.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import quote_plus

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from slackwater.spark_sink.connect.converter import Converter, Write
from slackwater.spark_sink.envelopes.connect_schema import ConnectSchema

_VALID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PRIMITIVES: Final[Mapping[str, tuple[str, Any]]] = {
    "boolean": ("bool", False),
    "bytes": ("bytes", b""),
    "double": ("double", 0.0),
    "float": ("float", 0.0),
    "int32": ("int32", 0),
    "int64": ("int64", 0),
    "string": ("string", ""),
}
# The message is the first of its file.
_INDEXES: Final = b"\0"
_INDENT: Final = "  "
_Field = descriptor_pb2.FieldDescriptorProto


def proto_name(name: str) -> str:
    """Return a name that Protobuf allows, as the converter's scrub.invalid.names makes it."""
    if _VALID.fullmatch(name):
        return name
    # As Java's URLEncoder writes it.
    encoded = quote_plus(name, safe="*").replace("~", "%7E")
    begin = "x" if encoded[0] in "_0123456789" else ""
    return begin + re.sub(r"[^A-Za-z0-9_]", "_", encoded)


def proto_file(schema: ConnectSchema) -> descriptor_pb2.FileDescriptorProto:
    """Return the file of a key's or value's message."""
    *package, _ = _path(schema)
    message = _message(schema)
    return descriptor_pb2.FileDescriptorProto(
        name="message.proto", package=".".join(package), syntax="proto3", message_type=[message]
    )


def proto_text(schema: ConnectSchema) -> str:
    """Return the file as the registry's client prints it, so that it finds the same schema."""
    file = proto_file(schema)
    (message,) = file.message_type
    lines = ['syntax = "proto3";', f"package {file.package};", "", *_message_lines(message), ""]
    return "\n".join(lines)


def proto_writer(schema: ConnectSchema) -> Write:
    """Return the function that writes messages of a schema."""
    file = proto_file(schema)
    (message,) = file.message_type
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    full_name = f"{file.package}.{message.name}"
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName(full_name))
    return lambda value: _INDEXES + made(**_plain(schema, value)).SerializeToString()


def _path(schema: Mapping[str, Any]) -> list[str]:
    return [proto_name(part) for part in schema["name"].split(".")]


def _message(schema: Mapping[str, Any]) -> descriptor_pb2.DescriptorProto:
    message = descriptor_pb2.DescriptorProto(name=_path(schema)[-1])
    for number, field in enumerate(schema["fields"], 1):
        is_array = field["type"] == "array"
        element = field["items"] if is_array else field
        name = proto_name(field["field"])
        made = message.field.add(
            name=name,
            # Otherwise user_id and userId would have one name in JSON, which is refused.
            json_name=name,
            number=number,
            label=_Field.LABEL_REPEATED if is_array else _Field.LABEL_OPTIONAL,
        )
        if element["type"] == "struct":
            nested = _message(element)
            made.type, made.type_name = _Field.TYPE_MESSAGE, nested.name
            if nested.name not in {each.name for each in message.nested_type}:
                message.nested_type.append(nested)
        else:
            made.type = _Field.Type.Value(f"TYPE_{_PRIMITIVES[element['type']][0].upper()}")
    return message


def _message_lines(message: descriptor_pb2.DescriptorProto) -> Iterator[str]:
    fields = [*map(_field_line, message.field)]
    if not fields:
        yield f"message {message.name} {{}}"
        return
    yield f"message {message.name} {{"
    yield from fields
    if message.nested_type:
        yield ""
    for nested in message.nested_type:
        yield from (_INDENT + line for line in _message_lines(nested))
    yield "}"


def _field_line(field: descriptor_pb2.FieldDescriptorProto) -> str:
    repeated = "repeated " if field.label == _Field.LABEL_REPEATED else ""
    kind = field.type_name or _Field.Type.Name(field.type).removeprefix("TYPE_").lower()
    return f"{_INDENT}{repeated}{kind} {field.name} = {field.number};"


def _plain(schema: Mapping[str, Any], value: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message that are not NULL."""
    fields = ((proto_name(field["field"]), field) for field in schema["fields"])
    values = ((name, field, value.get(name)) for name, field in fields)
    return {name: _field(field, of_name) for name, field, of_name in values if of_name is not None}


def _field(field: Mapping[str, Any], value: Any) -> Any:
    if field["type"] == "struct":
        return _plain(field, value)
    if field["type"] == "array":
        default = _PRIMITIVES[field["items"]["type"]][1]
        return [default if item is None else item for item in value]
    return value


PROTOBUF_CONVERTER: Final = Converter("PROTOBUF", proto_name, proto_text, proto_writer)
