"""The Spark source: spark.readStream and spark.read, .format("spanner_changes").

Its readers, stream_reader and batch_reader, are loaded only where a query reads. Spark asks for the
source's name, schema and reader in processes of their own, and loading Spanner's client in each of
them would make a start two seconds longer.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from slackwater.reader.schema import SCHEMA, ddl
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.options import SPANNER_FORMAT, StreamOptions, from_option
from slackwater.scheduler.spark.deferred_reader import DeferredReader
from slackwater.worker_errors import encoded_errors

if TYPE_CHECKING:
    from slackwater.scheduler.spark.batch_reader import SpannerChangesBatchReader
    from slackwater.scheduler.spark.epochs_reader import ToRows
    from slackwater.scheduler.spark.stream_reader import SpannerChangesStreamReader


class SpannerChangesDataSource(DataSource):
    """The data change records of a Cloud Spanner change stream.

    Its options are the fields of scheduler.source_settings.NotebookOptions.
    """

    @encoded_errors()
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Parsed here because Spark copies this object to all other processes: a temporary metadata
        # store has to be the same one for all of them.
        self._options = _values(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return SPANNER_FORMAT

    @encoded_errors()
    def schema(self) -> str | StructType:
        """Return the output's columns, as reader.schema declares them, or a table's."""
        if self._options.table is None:
            return ddl()
        from slackwater.scheduler.spark.typed_table import table_schema

        return table_schema(self._options.change_stream, self._options.table)

    @encoded_errors()
    def streamReader(self, schema: StructType) -> DeferredReader:  # noqa: N802
        """Return a reader for one streaming query."""
        return DeferredReader(partial(_stream_reader, self._options, self.to_rows(schema)))

    @encoded_errors()
    def reader(self, schema: StructType) -> SpannerChangesBatchReader:
        """Return a reader for one batch query."""
        from slackwater.scheduler.spark.batch_reader import SpannerChangesBatchReader

        return SpannerChangesBatchReader(self._options, self.to_rows(schema))

    def to_rows(self, schema: StructType) -> ToRows | None:
        """Return the conversion to the query's rows; None if they are data change records.

        Raises:
            OptionError: the query has a schema of its own.
        """
        if self._options.table is None:
            if schema.fieldNames() != SCHEMA.names:
                raise OptionError("spanner_changes has a fixed schema.", "Leave out .schema(...)")
            return None
        from slackwater.scheduler.spark.typed_table import rows_of_table

        return rows_of_table(self._options.table, schema)


def _stream_reader(options: StreamOptions, to_rows: ToRows | None) -> SpannerChangesStreamReader:
    from slackwater.scheduler.spark.stream_reader import SpannerChangesStreamReader

    return SpannerChangesStreamReader(options, to_rows)


def _values(options: dict[str, str]) -> StreamOptions:
    handed_over: StreamOptions | None = from_option(options)
    if handed_over is not None:
        return handed_over
    # With pydantic, which the program's own queries do without.
    from slackwater.scheduler.notebook_options import parse_options

    return parse_options(options, os.environ)
