"""The formats of sinks by name; apart, so that checking a name loads no Spark."""

from typing import Final

DELTA: Final = "delta"
ICEBERG: Final = "iceberg"
KAFKA: Final = "kafka"
JSON: Final = "json"
AVRO: Final = "avro"
TABLE_FORMATS: Final = (DELTA, ICEBERG)
FORMATS: Final = ("parquet", JSON, "orc", *TABLE_FORMATS)
MESSAGE_FORMATS: Final = (JSON, AVRO)
