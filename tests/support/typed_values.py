"""Values by type: what Spanner writes of each in a change record, and what typed columns hold."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

# A type as the information schema spells it, the JSON value, and the value in Python.
VALUES: Final[list[tuple[str, Any, Any]]] = [
    ("INT64", "-9223372036854775808", -(2**63)),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("FLOAT64", 0.1, 0.1),
    ("FLOAT64", "-Infinity", float("-inf")),
    ("double precision", 2, 2.0),
    ("FLOAT32", 0.5, 0.5),
    ("BOOL", False, False),
    ("STRING(10)", "a\0\"'\\ü", "a\0\"'\\ü"),
    ("character varying(10)", "", ""),
    ("BYTES(MAX)", "AAH/", b"\0\x01\xff"),
    ("bytea", "", b""),
    ("DATE", "0001-01-01", date(1, 1, 1)),
    (
        "NUMERIC",
        "-99999999999999999999999999999.999999999",
        Decimal("-" + "9" * 29 + "." + "9" * 9),
    ),
    ("numeric", "NaN", "NaN"),
    ("JSON", '{"a": 1.50}', '{"a": 1.50}'),
    ("TIMESTAMP", "9999-12-31T23:59:59.999999999Z", datetime.max.replace(tzinfo=UTC)),
    ("timestamp with time zone", "0001-01-01T00:00:00Z", datetime.min.replace(tzinfo=UTC)),
    # As the emulator writes years before 1000.
    ("TIMESTAMP", "900-01-02T03:04:05.123456Z", datetime(900, 1, 2, 3, 4, 5, 123456, UTC)),
    ("TIMESTAMP", "1-01-01T00:00:00.5Z", datetime(1, 1, 1, 0, 0, 0, 500000, UTC)),
    ("DATE", "37-12-31", date(37, 12, 31)),
    ("ARRAY<TIMESTAMP>", ["900-01-01T00:00:00Z"], [datetime(900, 1, 1, tzinfo=UTC)]),
    ("ARRAY<INT64>", ["1", None], [1, None]),
    ("ARRAY<STRING(MAX)>", [], []),
    ("double precision[]", ["Infinity", 1.5], [float("inf"), 1.5]),
    ("ARRAY<FLOAT32>(vector_length=>2)", [0.5, 1], [0.5, 1.0]),
    ("real[] vector length 2", [0.5, 1], [0.5, 1.0]),
    ("shop.State", "PAID", "PAID"),
    ("SOMETHING_NEW<X>", {"a": [1]}, '{"a":[1]}'),
    ("UUID", "f9168c5e-ceb2-4faa-b6bf-329bf39fa1e4", "f9168c5e-ceb2-4faa-b6bf-329bf39fa1e4"),
    ("ARRAY<JSON>", ['{"b": [1.50]}', None], ['{"b": [1.50]}', None]),
    ("INTERVAL", "P1Y2M3DT4H5M6.789123456S", "P1Y2M3DT4H5M6.789123456S"),
]
