"""The file and table formats of a changelog; apart, so that checking a name loads no Spark."""

from typing import Final

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
KAFKA: Final = "kafka"
TABLE_FORMATS: Final = (DELTA, ICEBERG)
FORMATS: Final = ("parquet", "json", "orc", *TABLE_FORMATS)
