"""The Spark source of an initial scan's parts; the program uses it, users do not.

Its reader is loaded only where a query reads, as that of scheduler.spark.data_source.
"""

from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from slackwater.reader.schema import ddl
from slackwater.scheduler.options import from_option
from slackwater.scheduler.spark.scan_options import ScanOptions

if TYPE_CHECKING:
    from slackwater.scheduler.spark.epochs_reader import ToRows

FORMAT: Final = "spanner_scan"


class SpannerScanDataSource(DataSource):
    """The rows of some parts of an initial scan, in the columns of the output's contract."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options: ScanOptions = from_option(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return FORMAT

    def schema(self) -> str | StructType:
        """Return the output's columns, as reader.schema declares them."""
        return ddl()

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader for one query."""
        from slackwater.scheduler.spark.scan_reader import ScanReader

        return ScanReader(self._options, self.to_rows(schema))

    def to_rows(self, schema: StructType) -> "ToRows | None":  # noqa: ARG002
        """Return the conversion to the query's rows; None if they are the records."""
        return None
