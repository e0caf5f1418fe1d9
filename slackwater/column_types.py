"""Spanner's column types, and their types in Spark SQL in typed columns.

Sink and source share this: a mirror, a typed changelog and a notebook show a value in the same way.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

# Types that are not listed here stay strings: JSON, PostgreSQL's NUMERIC (it may have more digits
# than Spark's decimals), INTERVAL, UUID, protos, and future types.
_TYPES: Final[Mapping[str, str]] = {
    "INT64": "BIGINT",
    "FLOAT64": "DOUBLE",
    "FLOAT32": "FLOAT",
    "BOOL": "BOOLEAN",
    "TIMESTAMP": "TIMESTAMP",
    "DATE": "DATE",
    "NUMERIC": "DECIMAL(38,9)",
    "BYTES": "BINARY",
    "bigint": "BIGINT",
    "double precision": "DOUBLE",
    "real": "FLOAT",
    "boolean": "BOOLEAN",
    "timestamp with time zone": "TIMESTAMP",
    "spanner.commit_timestamp": "TIMESTAMP",
    "date": "DATE",
    "bytea": "BINARY",
}
# The types of those that Spanner's documents name today.
_TEXTS: Final = frozenset(
    {
        *("STRING", "JSON", "UUID", "INTERVAL", "TOKENLIST"),
        *("character varying", "varchar", "text", "jsonb", "numeric", "uuid", "interval"),
        *("oid", "spanner.tokenlist"),
    }
)
# PROTO<shop.Order>, ENUM<shop.State>, and the name of a type that came with a proto bundle.
_OF_BUNDLES: Final = re.compile(r"(?:PROTO|ENUM)?<.*>|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
# A vector is an array: ARRAY<FLOAT32>(vector_length=>2), real[] vector length 2.
_ARRAY: Final = re.compile(r"ARRAY<(.*)>(?:\(.*\))?|(.*)\[\](?: vector length \d+)?")
_LENGTH: Final = re.compile(r"\(.*\)")


def element_type(spanner_type: str) -> str | None:
    """Return the type of an array's elements; None if the type is not an array."""
    match = _ARRAY.fullmatch(spanner_type)
    return match and (match.group(1) or match.group(2))


def is_of_a_new_type(spanner_type: str) -> bool:
    """Return whether a column's type is none that Slackwater was written for: it stays a text.

    Args:
        spanner_type: as the information schema spells it, in either dialect.
    """
    element = element_type(spanner_type)
    if element is not None:
        return is_of_a_new_type(element)
    plain = _LENGTH.sub("", spanner_type)
    return not (plain in _TYPES or plain in _TEXTS or _OF_BUNDLES.fullmatch(plain))


@lru_cache(maxsize=10_000)
def spark_type(spanner_type: str) -> str:
    """Return the Spark SQL type of a column.

    Args:
        spanner_type: as the information schema spells it, in either dialect.
    """
    element = element_type(spanner_type)
    if element is not None:
        return f"ARRAY<{spark_type(element)}>"
    return _TYPES.get(_LENGTH.sub("", spanner_type), "STRING")
