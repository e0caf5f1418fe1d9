"""The Spark source of a table of Bigtable's: spark.readStream.format("bigtable_changes")."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from slackwater.reader.bigtable.records import schema_of
from slackwater.reader.schema import ddl
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.options import BIGTABLE_FORMAT, from_option
from slackwater.scheduler.spark.deferred_reader import DeferredReader
from slackwater.worker_errors import encoded_errors

if TYPE_CHECKING:
    from slackwater.scheduler.spark.bigtable_reader import (
        BigtableChangesStreamReader,
        BigtableOptions,
    )
    from slackwater.scheduler.spark.epochs_reader import ToRows


class BigtableChangesDataSource(DataSource):
    """The changes of a table of Cloud Bigtable's.

    Its options are the fields of scheduler.source_settings.BigtableNotebookOptions.
    """

    @encoded_errors()
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        self._options = from_option(options) or _parsed(options)

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return BIGTABLE_FORMAT

    def schema(self) -> str | StructType:
        """Return the output's columns, as reader.bigtable.records.schema_of() has them."""
        return ddl(schema_of(self._options.change_stream))

    @encoded_errors()
    def streamReader(self, schema: StructType) -> DeferredReader:  # noqa: N802
        """Return a reader for one streaming query."""
        return DeferredReader(partial(_stream_reader, self._options, self.to_rows(schema)))

    @encoded_errors()
    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Refuse a batch query: without positions there is no cut to read."""
        raise OptionError(
            f"{BIGTABLE_FORMAT} is a stream: Bigtable has no consistent cut to read in a batch.",
            'Use spark.readStream, with .option("end", ...) for a part of it',
        )

    def to_rows(self, schema: StructType) -> ToRows | None:
        """Return the conversion to the query's rows; None if they are the changes.

        Raises:
            OptionError: the query has a schema of its own.
        """
        if schema.fieldNames() != schema_of(self._options.change_stream).names:
            raise OptionError(f"{BIGTABLE_FORMAT} has a fixed schema.", "Leave out .schema(...)")
        return None


def _stream_reader(options: BigtableOptions, to_rows: ToRows | None) -> BigtableChangesStreamReader:
    try:
        from slackwater.scheduler.spark.bigtable_reader import BigtableChangesStreamReader
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{BIGTABLE_FORMAT} needs a package that is not installed: {error.name}.",
            "pip install 'slackwater[bigtable]'",
        ) from error
    return BigtableChangesStreamReader(options, to_rows)


def _parsed(options: dict[str, str]) -> BigtableOptions:
    # With pydantic, which the program's own queries do without.
    from slackwater.scheduler.notebook_options import parse_options
    from slackwater.scheduler.source_settings import BigtableNotebookOptions

    return parse_options(options, os.environ, BigtableNotebookOptions)
