"""The tables that a pipeline has made, each for one of Spanner's and under its full name."""

from __future__ import annotations

from typing import Final

from pyspark.sql import SparkSession

from spark_sink.epoch_directory import EpochDirectory
from spark_sink.sql_text import literal
from spark_sink.table_format import TableFormat

# The property that says which of Spanner's tables it was made for.
TABLE: Final = "slackwater.table"


def own_tables(
    spark: SparkSession, table_format: TableFormat, path: str, directory: EpochDirectory
) -> list[str]:
    """The full names of those that are there.

    Args:
        spark: a session with the format's jar.
        table_format: of the tables.
        path: the directory that the tables' directories lie in.
        directory: the same.
    """
    listed = table_format.listed(spark)
    if listed is not None:
        # What others keep in the catalog is not ours to change.
        return [name for name in listed if _is_own(spark, table_format, path, name)]
    return [name for name in directory.names() if table_format.exists(spark, f"{path}/{name}")]


def _is_own(spark: SparkSession, table_format: TableFormat, path: str, name: str) -> bool:
    properties = spark.sql(f"SHOW TBLPROPERTIES {table_format.name(spark, f'{path}/{name}')}")
    return any((row["key"], row["value"]) == (TABLE, name) for row in properties.collect())


def own_properties(properties: dict[str, str], table: str) -> str:
    """The properties of a table that is made, as CREATE TABLE lists them.

    Args:
        properties: what the user wants.
        table: the full name in Spanner.
    """
    found = {**properties, TABLE: table}
    return ", ".join(f"{literal(name)} = {literal(value)}" for name, value in found.items())
