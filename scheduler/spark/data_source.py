"""The Spark source: spark.readStream.format("spanner_changes").

How a query reads is in stream_reader beside it, which is loaded where one reads: Spark asks for the
source's name and schema in processes of their own, and to load Spanner's client in each would make
a start two seconds longer.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from slackwater.reader.schema import SCHEMA, ddl
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.options import parse_options

if TYPE_CHECKING:
    from slackwater.scheduler.spark.stream_reader import SpannerChangesStreamReader

FORMAT: Final = "spanner_changes"


class SpannerChangesDataSource(DataSource):
    """The data change records of a Cloud Spanner change stream.

    Options: see scheduler.options.OPTION_NAMES and the page on the Spark source.
    """

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Parsed here, in the one place from which Spark copies to all others: a temporary
        # metadata store has to be the same one for all.
        self._parsed = parse_options(options, os.environ)

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return FORMAT

    def schema(self) -> str:
        """The output's columns: see reader.schema."""
        return ddl()

    def streamReader(self, schema: StructType) -> SpannerChangesStreamReader:  # noqa: N802
        """A reader for one streaming query."""
        if schema.fieldNames() != SCHEMA.names:
            raise OptionError("spanner_changes has a schema of its own.", "Leave out .schema(...)")
        from slackwater.scheduler.spark.stream_reader import SpannerChangesStreamReader

        return SpannerChangesStreamReader(self._parsed)
