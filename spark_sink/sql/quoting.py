"""Quoting of identifiers, and literals, in Spark SQL."""

from datetime import datetime

from slackwater.timestamp import datetime_to_us


def identifier(name: str) -> str:
    """Quote the name of a column, table or path."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """Quote a text as a string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def timestamp_literal(value: datetime) -> str:
    """Return a time as an expression, in whole microseconds."""
    return f"timestamp_micros({datetime_to_us(value)})"
