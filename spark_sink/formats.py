"""The file and table formats of a changelog; apart, so that checking a name loads no Spark."""

from typing import Final

DELTA: Final = "delta"
KAFKA: Final = "kafka"
FORMATS: Final = ("parquet", "json", "orc", DELTA)
