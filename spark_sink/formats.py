"""The names of file formats that the sinks write, and Spark's options for writing them."""

from collections.abc import Mapping
from typing import Final

PARQUET: Final = "parquet"
JSON: Final = "json"
ORC: Final = "orc"
# Rows of tables in a database: Google BigQuery, PostgreSQL.
BIGQUERY: Final = "bigquery"
POSTGRESQL: Final = "postgresql"
# Tables whose catalog is a database, and whose rows are files.
DUCKLAKE: Final = "ducklake"
# The schemes of databases' URLs.
DATABASES: Final[Mapping[str, str]] = {BIGQUERY: "bq", POSTGRESQL: "postgresql"}
# Messages, with a schema.
AVRO: Final = "avro"
PROTOBUF: Final = "protobuf"
# Lines, each a row's only column.
TEXT: Final = "text"

# A setting of Spark's: with it Parquet has timestamps in microseconds, as Arrow writes them.
MICROSECONDS: Final = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")

# By default Spark writes timestamps as text with three decimals. Spanner's have six, and the order
# of changes needs them.
_ALL_DECIMALS: Final = {"timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"}
_TEXTS: Final = frozenset({JSON, "csv", "xml"})


def database_of(path: str) -> str | None:
    """Return the format of the database that a path names; None for another path."""
    schemes = {f"{scheme}://": name for name, scheme in DATABASES.items()}
    return next((name for begin, name in schemes.items() if path.startswith(begin)), None)


def write_options(file_format: str) -> Mapping[str, str]:
    """Return the options without which a format would lose information.

    Args:
        file_format: Spark's name of the format, in upper or lower case.
    """
    return _ALL_DECIMALS if file_format.lower() in _TEXTS else {}
