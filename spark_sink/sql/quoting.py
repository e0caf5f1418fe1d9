"""Quoting of identifiers and string literals in Spark SQL."""


def identifier(name: str) -> str:
    """Quote the name of a column, table or path."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """Quote a text as a string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
