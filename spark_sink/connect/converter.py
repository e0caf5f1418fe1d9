"""A converter of Kafka Connect: from its schemas and values to those of a format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slackwater.spark_sink.envelopes.connect_schema import ConnectSchema

# Writes a value of a schema.
Write = Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Converter:
    """A converter.

    Attributes:
        schema_type: the format, as a schema registry names it.
        name: returns a valid name of a column.
        text: returns the schema that a registry gets.
        writer: returns the function that writes values, after the number of their schema.
    """

    schema_type: str
    name: Callable[[str], str]
    text: Callable[[ConnectSchema], str]
    writer: Callable[[ConnectSchema], Write]
