"""Avro's binary encoding."""

import io
from typing import Any

import fastavro


def avro_bytes(schema: Any, value: Any) -> bytes:
    """Return a value in the binary encoding.

    Args:
        schema: the parsed schema.
        value: the value that fastavro writes.

    Raises:
        ValueError: the value is not of the schema.
    """
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()
