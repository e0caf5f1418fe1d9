"""A table of Bigtable's as the source of a pipeline."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pyarrow as pa

from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.pipeline.source import may_have_begun, source_options
from slackwater.reader.bigtable.records import schema_of
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import ROW_KEY, BigtableTable
from slackwater.reader.database.change_stream_info import retention_text
from slackwater.reader.errors import StartTooOldError
from slackwater.scheduler.bigtable.bigtable_source import BigtableSource
from slackwater.scheduler.options import BIGTABLE_FORMAT, SourceOptions
from slackwater.scheduler.start_position import check_start
from slackwater.spark_sink.errors import ColumnNameError, TableNameError
from slackwater.spark_sink.sql.columns import Column


@dataclass(frozen=True, slots=True)
class BigtableHandle:
    """A table that was looked up and can be read; see PipelineSource."""

    format: ClassVar = BIGTABLE_FORMAT
    has_tables: ClassVar = False
    is_cut_by_time: ClassVar = False

    source: BigtableSource
    options: SourceOptions[BigtableTable]

    def changes(self) -> BigtableSource:
        """Return the table as the scheduler's source."""
        return self.source

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return schema_of(self.options.change_stream)

    @property
    def retention_ns(self) -> int:
        """The time for which changes can be read."""
        return self.source.retention_ns()

    def clock_ns(self) -> int:
        """Read this machine's clock, halfway through a call: Bigtable's can't be asked for.

        Raises:
            ReaderError: Bigtable does not answer.
        """
        begun_ns = self.source.strong_read_timestamp_ns()
        self.source.service.partitions()
        return (begun_ns + self.source.strong_read_timestamp_ns()) // 2

    def close(self) -> None:
        """Close the connection."""
        self.source.service.close()

    def check(self, settings: Settings) -> None:
        """Check that the output can have the listed cells as columns.

        Raises:
            SettingsError: it can't.
        """
        table = self.options.change_stream
        columns = [
            Column(name, code, is_key=name == ROW_KEY)
            for name, code in {ROW_KEY: "BYTES", **dict(table.columns)}.items()
        ]
        try:
            settings.sink.check_tables({table.table: columns} if table.columns else {})
        except (ColumnNameError, TableNameError) as error:
            raise SettingsError(
                f"source.columns: {error.message}", "Leave it out, or choose another format"
            ) from error

    def check_new(self, settings: Settings) -> StartTooOldError | None:
        """Check that a new pipeline can start at its start; see PipelineSource.

        A family of columns may be deleted later, while there are changes of it to read.

        Raises:
            SettingsError: source.columns names a family that the table lacks.
        """
        names = {name.partition(":")[0] for name, _ in self.options.change_stream.columns}
        if missing := sorted(names - {ROW_KEY} - self.source.families()):
            families = ", ".join(sorted(self.source.families()))
            raise SettingsError(
                f"source.columns: {self.options.change_stream.path} has no column family"
                f" {missing[0]}.",
                f"It has {families}",
            )
        try:
            check_start(self.options.start, self.source)
        except StartTooOldError as error:
            if not may_have_begun(settings):
                raise
            return error
        return None

    def with_options(self, settings: Settings) -> "BigtableHandle":
        """Return the same with the options of other settings."""
        return replace(self, options=source_options(settings))

    def text(self, settings: Settings) -> str:
        """Return what was looked up, for people; raises as check()."""
        self.check(settings)
        partitions = len(self.source.service.partitions())
        return (
            f"{self.options.change_stream.path}, {partitions} partition(s), kept"
            f" {retention_text(self.retention_ns)}"
        )


def connect(settings: Settings) -> BigtableHandle:
    """Look the table up; nothing is written anywhere.

    Raises:
        ReaderError: it does not exist, has no change stream, or can't be reached.
    """
    options: SourceOptions[BigtableTable] = source_options(settings)
    source = BigtableSource(BigtableService(options.change_stream))
    source.check()
    return BigtableHandle(source, options)
