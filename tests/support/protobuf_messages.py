"""Protobuf messages read by the text of their schema, which protoc compiles."""

import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from grpc_tools import protoc

_PREFIX_BYTES = 5


@cache
def message_class(text: str) -> type[Message]:
    """Return the class of the first message of a file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "schema.proto").write_text(text)
        made = Path(folder) / "descriptors"
        assert (
            protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={made}", "schema.proto"])
            == 0
        )
        (file,) = descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    name = f"{file.package}.{file.message_type[0].name}"
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def read_protobuf(text: str, data: bytes) -> dict[str, Any]:
    """Return a message's fields; None is what has the default of its type."""
    return _plain(message_class(text).FromString(data))


def protobuf_decoder(schemas: Mapping[int, Any]) -> Callable[[bytes], Any]:
    """Return what decodes the wire format of schema registries; see kafka_messages.avro_decoder."""

    def decode(data: bytes) -> Any:
        # A zero, the number of the schema, and a zero for its first message.
        zero, number, first = data[0], data[1:_PREFIX_BYTES], data[_PREFIX_BYTES]
        assert (zero, first) == (0, 0)
        return read_protobuf(schemas[int.from_bytes(number)], data[_PREFIX_BYTES + 1 :])

    return decode


def _plain(message: Message) -> dict[str, Any]:
    present = {field.name: value for field, value in message.ListFields()}
    return {field.name: _value(present.get(field.name)) for field in message.DESCRIPTOR.fields}


def _value(value: Any) -> Any:
    if isinstance(value, Message):
        return _plain(value)
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    return list(value)
