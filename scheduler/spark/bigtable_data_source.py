"""The Spark source of a table of Bigtable's: spark.readStream.format("bigtable_changes")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from slackwater.reader.bigtable.records import schema_of
from slackwater.reader.schema import ddl
from slackwater.scheduler.options import BIGTABLE_FORMAT, from_option
from slackwater.worker_errors import encoded_errors

if TYPE_CHECKING:
    from slackwater.scheduler.spark.bigtable_reader import BigtableChangesStreamReader
    from slackwater.scheduler.spark.epochs_reader import ToRows


class BigtableChangesDataSource(DataSource):
    """The changes of a table of Cloud Bigtable's; the program hands its options over."""

    @encoded_errors()
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = from_option(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return BIGTABLE_FORMAT

    def schema(self) -> str | StructType:
        """Return the output's columns, as reader.bigtable.records.schema_of() has them."""
        return ddl(schema_of(self._options.change_stream))

    @encoded_errors()
    def streamReader(self, schema: StructType) -> BigtableChangesStreamReader:  # noqa: N802
        """Return a reader for one streaming query."""
        from slackwater.scheduler.spark.bigtable_reader import BigtableChangesStreamReader

        return BigtableChangesStreamReader(self._options, self.to_rows(schema))

    def to_rows(self, schema: StructType) -> ToRows | None:  # noqa: ARG002
        """Return the conversion to the query's rows; None if they are the changes."""
        return None
