"""Typed changelogs in Iceberg, which Spark neither writes nor reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from pyiceberg.exceptions import NoSuchTableError

from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors
from slackwater.spark_sink.output.iceberg.table_place import TablePlace
from slackwater.spark_sink.tables.iceberg import Iceberg

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class IcebergByDriver(Iceberg):
    """Iceberg for typed changelogs; see Iceberg.

    Args:
        namespace: a catalog and a namespace, as in SQL; None for tables in folders.
        storage_options: see TableFormat.
    """

    is_by_driver = True

    def __init__(
        self,
        namespace: str | None = None,
        storage_options: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        super().__init__(namespace)
        self.storage_options = storage_options

    def place(self, path: str) -> TablePlace:
        """Return where a table is."""
        return TablePlace(path, self.namespace, self.storage_options)

    def exists(self, spark: SparkSession, path: str) -> bool:
        """Return whether the table exists."""
        place = self.place(path)
        with iceberg_errors(place.name):
            try:
                place.open(spark).load_table(place.identifier)
            except NoSuchTableError:
                return False
        return True

    def list_tables(self, spark: SparkSession) -> Sequence[str] | None:
        """Return the names of the namespace's tables; None for folders."""
        place = self.place("")
        with iceberg_errors(place.name):
            return place.tables(spark)
