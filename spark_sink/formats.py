"""The formats of sinks by name; apart, so that checking a name loads no Spark."""

from collections.abc import Mapping
from typing import Final

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
KAFKA: Final = "kafka"
JSON: Final = "json"
AVRO: Final = "avro"
TABLE_FORMATS: Final = (DELTA, ICEBERG)
FORMATS: Final = ("parquet", JSON, "orc", *TABLE_FORMATS)
MESSAGE_FORMATS: Final = (JSON, AVRO)

# Where Spark is not told otherwise, it writes timestamps into texts with three decimals; Spanner's
# have six, and the order of changes needs them.
_ALL_DECIMALS: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_TEXTS: Final = frozenset({JSON, "csv", "xml"})


def write_options(file_format: str) -> Mapping[str, str]:
    """The options without which writing a format would lose something.

    Args:
        file_format: Spark's name of it, in any case.
    """
    return _ALL_DECIMALS if file_format.lower() in _TEXTS else {}
