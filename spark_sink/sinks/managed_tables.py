"""The base of the sinks that create and keep one table for each of Spanner's, by its full name."""

from __future__ import annotations

import posixpath
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, Self, TypeVar

from pydantic import Field, model_validator

from slackwater.setting_values import TextMapping
from slackwater.spark_sink.errors import SinkError
from slackwater.spark_sink.filters.record_filter import RecordFilter
from slackwater.spark_sink.formats import BIGQUERY, DATABASES, DUCKLAKE, POSTGRESQL
from slackwater.spark_sink.output.application import application_of, scan_application
from slackwater.spark_sink.output.bigquery.address import names_a_table
from slackwater.spark_sink.output.dead_letters import DeadLetters
from slackwater.spark_sink.output.maintenance import (
    NO_MAINTENANCE,
    Maintenance,
    MaintenancePolicy,
)
from slackwater.spark_sink.output.preparation import Preparation
from slackwater.spark_sink.output.staging import StagedByTasks, Staging
from slackwater.spark_sink.output.watermark_log import LoggedScans, WatermarkLog, output_position
from slackwater.spark_sink.sink import EpochSummary, OutputPosition
from slackwater.spark_sink.sinks.table_settings import TableSettings
from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.table_names import plain_name, table_of
from slackwater.spark_sink.tables.bigquery import BigQuery
from slackwater.spark_sink.tables.database_store import DatabaseStore
from slackwater.spark_sink.tables.ducklake import DuckLake
from slackwater.spark_sink.tables.in_bigquery.mirroring import Mirroring
from slackwater.spark_sink.tables.in_bigquery.table_layout import table_layout
from slackwater.spark_sink.tables.in_ducklake.address import lake_address
from slackwater.spark_sink.tables.in_postgresql.partitions import partitions_asked_for
from slackwater.spark_sink.tables.managed_table import ManagedTable, require_possible_names
from slackwater.spark_sink.tables.postgresql import Postgresql
from slackwater.spark_sink.tables.registry import TABLE_FORMATS
from slackwater.spark_sink.tables.table_changes import AppendId
from slackwater.spark_sink.tables.table_store import TableStore
from slackwater.timestamp import us_to_datetime

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from slackwater.spark_sink.output.epoch_place import EpochPlace
    from slackwater.spark_sink.tables.table_access import TableAccess

# The tables that are committed to at the same time.
_TABLES_AT_ONCE: Final = 4
# An epoch up to both is applied by the driver, if it can: of records, and of staged bytes.
_SMALL_RECORDS_MAX: Final = 100_000
_SMALL_BYTES_MAX: Final = 32 << 20

T = TypeVar("T", bound=ManagedTable)
R = TypeVar("R")


class ManagedTableSettings(TableSettings, ABC):
    """The settings of kinds that keep one table for each of Spanner's.

    Attributes:
        table_properties: of the tables that have to be made.
        bad_records: stop at a value that does not have its column's type, or set its record aside.
    """

    formats = (*TABLE_FORMATS, *DATABASES, DUCKLAKE)

    format: str = "delta"
    table_properties: TextMapping = Field(default_factory=dict)
    bad_records: Literal["stop", "dead_letter"] = "stop"

    def check_tables(self, tables: Mapping[str, Sequence[Column]]) -> None:
        """Refuse names that folders and the tables in them can't have; see SinkSettings."""
        made = self.tables("")
        for table, columns in tables.items():
            name = plain_name(table)
            if isinstance(made, DatabaseStore):
                made.name(f"{made.root}/{name}")
            require_possible_names(table, columns, made, self.table_properties)

    def tables(self, pipeline: str) -> TableStore:
        """Return where a pipeline's tables are."""
        if self.format == DUCKLAKE:
            address = lake_address(self.path, self.catalog, self.storage_options)
            return DuckLake(address, self.make_place(), application_of(pipeline))
        if self.format == POSTGRESQL:
            return Postgresql(
                self.path,
                self.make_place(),
                application_of(pipeline),
                are_mirrors=self.mirroring is not None,
            )
        if self.format != BIGQUERY:
            return self.table_format
        return BigQuery(
            self.path,
            self.bigquery_options,
            self.make_place(),
            application_of(pipeline),
            self.mirroring,
        )

    @property
    def mirroring(self) -> Mirroring | None:
        """The way to change mirrors in BigQuery; None if the tables are no mirrors."""
        return None

    def check(self) -> None:
        """Ask a database, too; see SinkSettings."""
        super().check()
        tables = self.tables("")
        if isinstance(tables, DatabaseStore):
            tables.log.check()

    @model_validator(mode="after")
    def _lake(self) -> Self:
        if self.format != DUCKLAKE:
            return self
        if self.table_properties:
            raise ValueError(
                "table_properties does not go with format ducklake: set options of the lake's"
            )
        try:
            lake_address(self.path, self.catalog, self.storage_options)
        except SinkError as error:
            raise ValueError(error.message) from error
        return self

    @model_validator(mode="after")
    def _dataset(self) -> Self:
        if names_a_table(self.path):
            raise ValueError(
                f"kind {self.kind} has a table for each of Spanner's: path is a dataset,"
                " bq://PROJECT/DATASET"
            )
        are_mirrors, properties = self.mirroring is not None, self.table_properties
        try:
            if self.format == BIGQUERY:
                table_layout(properties, are_merged=are_mirrors)
            elif self.format == POSTGRESQL:
                partitions_asked_for(properties, are_mirrors=are_mirrors)
        except ValueError as error:
            raise ValueError(f"table_properties: {error}") from error
        return self

    @property
    def sets_bad_records_aside(self) -> bool:
        """Whether bad records become dead letters."""
        return self.bad_records == "dead_letter"


class ManagedTables(StagedByTasks, LoggedScans, ABC, Generic[T]):
    """The base class of sinks that keep one table for each of Spanner's.

    Args:
        place: of staged epochs, and of the tables' directories, each named by plain_name().
        pipeline: the pipeline's name.
        tables: where they are.
        record_filter: which records are written, and which of their columns.
        properties: of tables that are created.
        keeps_bad_records: records that can't be converted are set aside; otherwise the epoch fails.
        policy: when the tables are maintained.

    Attributes:
        holds_small: see Staging.
    """

    holds_small: ClassVar[bool] = False

    def __init__(
        self,
        place: EpochPlace,
        pipeline: str,
        tables: TableStore,
        record_filter: RecordFilter | None = None,
        *,
        properties: Mapping[str, str] | None = None,
        keeps_bad_records: bool = False,
        policy: MaintenancePolicy = NO_MAINTENANCE,
    ) -> None:
        self._path = tables.root or place.path
        self._format = tables
        self._policy = policy
        self.maintenance = Maintenance(self._maintain, policy.every_s)
        retention = tables.retention_properties(policy.keep_s)
        self._properties = {**retention, **(properties or {})}
        self._dead_letters = DeadLetters(
            place, is_enabled=keeps_bad_records, mod_columns=self._mod_columns()
        )
        self._application = application_of(pipeline)
        preparation = Preparation(record_filter or RecordFilter())
        self._staging = Staging(place, preparation, holds_small=self.holds_small)
        self._scanned = self._staging.for_scan()
        self._watermarks = WatermarkLog(place, pipeline)
        self._scanned_tables: dict[str, Sequence[Column]] = {}
        self._tables: dict[str, T] = {}
        self._accesses: dict[str, TableAccess] = {}

    def position(self, spark: SparkSession) -> OutputPosition:
        """Return the log's last line, and the last commit to any table if it is later; see Sink.

        Raises:
            ObjectStoreError, PublishError: the object store refuses, or does not answer.
        """
        self._staging.take_over(spark)
        of_all = self._format.take_over(self._watermarks.last_low_watermark)
        # Somebody may have altered or removed tables.
        self._tables, self._accesses = {}, {}
        existing = [(spark, table) for table in self._existing_tables(spark)]
        versions = self._at_once(self._last_version, existing)
        times = [us_to_datetime(version) for version in versions if version is not None]
        committed = max([*times, *([of_all] if of_all else [])], default=None)
        of_log = output_position(
            self._watermarks.last(), committed, is_one_commit=self._format.is_one_commit
        )
        self.maintenance.take_over(of_log.complete)
        return replace(of_log, has_tables=bool(existing), committed=committed)

    def begin_scan(self, spark: SparkSession, tables: Mapping[str, Sequence[Column]]) -> None:
        """Create all tables, also those without rows; see Sink."""
        self._scanned_tables = dict(tables)
        for table, columns in tables.items():
            self._table(spark, table).ensure_columns(columns)

    def add_scanned(self, rows: DataFrame, chunk: int, low_watermark: datetime) -> int:
        """Add a chunk, which is visible in each table as soon as it is whole there; see Sink."""
        spark = rows.sparkSession
        records = self._scanned.stage(rows, chunk).records
        staged = self._scanned.read_staged(spark, chunk)
        scan = scan_application(self._application, low_watermark)
        append_id = AppendId(scan, version=chunk, low_watermark=low_watermark, chunk=chunk)
        tables = [row["table_name"] for row in staged.select("table_name").distinct().collect()]
        with self._format.at_once(low_watermark, chunk=chunk):
            for table in tables:
                self._add(staged, table, self._scanned_tables[table], append_id)
        self._scanned.discard(chunk)
        return records

    @abstractmethod
    def _make(self, spark: SparkSession, path: str, table: str) -> T:
        """Return the table for one of Spanner's; it need not exist yet."""

    @staticmethod
    def _mod_columns() -> Sequence[str]:
        """Return the columns that identify the mods of a bad row; see DeadLetters."""
        return ("key",)

    def _add(
        self, changes: DataFrame, table: str, columns: Sequence[Column], append_id: AppendId
    ) -> None:
        """Add a table's rows of staged records once, however often it is tried.

        The table has the columns.
        """
        made = self._table(changes.sparkSession, table)
        self._dead_letters.write(
            lambda is_checked: made.rows_of(changes, columns, is_checked=is_checked),
            lambda rows: made.add(rows.select("row.*"), append_id),
            changes,
            table,
            append_id.low_watermark,
            chunk=append_id.chunk,
        )

    def _last_version(self, spark: SparkSession, table: str) -> int | None:
        """Take a table over, and return the version of its last epoch; None for none."""
        return self._access(spark, table).take_over()

    def _access(self, spark: SparkSession, table: str) -> TableAccess:
        """Return the access to a table."""
        if table not in self._accesses:
            path = self._place(table)
            self._accesses[table] = self._format.access(spark, path, self._application)
        return self._accesses[table]

    def _read_small(
        self, epoch_id: int, summary: EpochSummary, columns: Sequence[str] | None = None
    ) -> pa.Table | None:
        """Return a staged epoch's records for the driver; None if it is not a small one.

        Args:
            epoch_id, summary: as it was staged.
            columns: of the records; None for all.
        """
        if not 0 < summary.written <= _SMALL_RECORDS_MAX:
            return None
        return self._staging.read_small(epoch_id, columns, _SMALL_BYTES_MAX)

    def _at_once(self, work: Callable[..., R], tables: Iterable[tuple[Any, ...]]) -> list[R]:
        """Do work for several tables at the same time, and return the results.

        Args:
            work: for one table.
            tables: the arguments for each.
        """
        with ThreadPoolExecutor(_TABLES_AT_ONCE) as pool:
            return list(pool.map(lambda arguments: work(*arguments), tables))

    def _table(self, spark: SparkSession, name: str) -> T:
        if name not in self._tables:
            self._tables[name] = self._make(spark, self._place(name), name)
        return self._tables[name]

    def _place(self, table: str) -> str:
        return f"{self._path}/{plain_name(table)}"

    def _existing_tables(self, spark: SparkSession) -> list[str]:
        """Return the full names of the tables that exist."""
        listed = self._format.list_tables(spark)
        if listed is not None:
            # The catalog may have other tables, which are not this pipeline's to change.
            own = (self._own_name(spark, name) for name in filter(None, map(table_of, listed)))
            return [name for name in own if name is not None]
        with self._staging.place.translating():
            names = self._staging.place.names()
        tables = filter(None, (table_of(name) for name in names if not name.startswith("_")))
        return [name for name in tables if self._format.exists(spark, self._place(name))]

    def _own_name(self, spark: SparkSession, name: str) -> str | None:
        """Return the full name of the Spanner table that a catalog's table was made for.

        Args:
            spark: a session.
            name: the full name that the catalog's would be; it may have converted it to lower case.
        """
        source = self._access(spark, name).source_table()
        return source if source is not None and source.lower() == name.lower() else None

    def _begin_maintenance(self, spark: SparkSession) -> None:
        """Begin to maintain the tables, if that is due."""

        def paths() -> list[str]:
            return [self._place(name) for name in self._existing_tables(spark)]

        self.maintenance.begin_if_due(spark, paths)

    def _maintain(self, spark: SparkSession, path: str) -> None:
        table = table_of(posixpath.basename(path))
        if table is not None:
            self._access(spark, table).maintain(self._policy.keep_s)
