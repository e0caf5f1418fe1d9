"""The names of the sinks' formats; importing them does not load Spark."""

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

# By default Spark writes timestamps as text with three decimals. Spanner's have six, and the order
# of changes needs them.
_ALL_DECIMALS: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_TEXTS: Final = frozenset({JSON, "csv", "xml"})


def write_options(file_format: str) -> Mapping[str, str]:
    """Return the options without which a format would lose information.

    Args:
        file_format: Spark's name of the format, in upper or lower case.
    """
    return _ALL_DECIMALS if file_format.lower() in _TEXTS else {}
