"""Names and texts in statements of Spark SQL."""


def identifier(name: str) -> str:
    """A name of a column, table or path."""
    return "`" + name.replace("`", "``") + "`"


def literal(value: str) -> str:
    """A text."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
