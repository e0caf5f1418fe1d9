"""The file and table formats of a changelog; apart, so that checking a name loads no Spark."""

from typing import Final

DELTA: Final = "delta"
FORMATS: Final = ("parquet", "json", "orc", DELTA)
