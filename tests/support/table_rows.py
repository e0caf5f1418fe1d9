"""Rows of tables as a plain client reads them, and values in a comparable form."""

import json
import re
from base64 import b64decode, b64encode
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator_database import database_of


def spanner_rows(
    stream: ChangeStream, dialect: Dialect, table: str, at_ns: int | None = None
) -> list[dict[str, Any]]:
    """Return the rows of a table at a time or now, with comparable() values."""
    database = database_of(stream)
    quote = '"' if dialect is Dialect.POSTGRESQL else "`"
    name = f"{quote}.{quote}".join(table.split("."))
    at = None if at_ns is None else datetime.fromtimestamp(at_ns // 1_000 / 1e6, UTC)
    with database.snapshot(read_timestamp=at) as snapshot:
        result = snapshot.execute_sql(f"SELECT * FROM {quote}{name}{quote}")
        # The client leaves bytes in Base64.
        rows = [[b64decode(v) if isinstance(v, bytes) else v for v in row] for row in result]
        names = [field.name for field in result.fields]
    return [dict(zip(names, map(comparable, row), strict=True)) for row in rows]


def comparable(value: Any) -> Any:
    """Return a value of the client, Arrow or JSON in a form in which equal values are equal."""
    if hasattr(value, "serialize"):
        return comparable(json.loads(value.serialize(), parse_float=Decimal))
    if isinstance(value, dict):
        return {name: comparable(value[name]) for name in sorted(value)}
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, float):
        return Decimal(repr(value)).normalize()
    if isinstance(value, Decimal):
        return value.normalize()
    if hasattr(value, "astimezone"):
        value = value.astimezone(UTC).isoformat()
    if isinstance(value, bytes | bytearray):
        value = b64encode(value).decode()
    if isinstance(value, str) and (stamp := re.fullmatch(r"(\d{4}-\d\d-\d\dT[\d:]{8}).*", value)):
        # The emulator drops fractions of a second from the values in mods.
        return stamp.group(1)
    return value
