"""An Iceberg table, and the process that owns it."""

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError, PublishError
from slackwater.spark_sink.output.iceberg.columns import (
    arrow_schema,
    column_types,
    iceberg_schema,
    new_columns,
    partition_columns,
    refused_features,
    with_field_ids,
)
from slackwater.spark_sink.output.iceberg.commit_once import commit_once
from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors
from slackwater.spark_sink.output.iceberg.rewrite import Rewrite
from slackwater.spark_sink.output.iceberg.snapshots import (
    last_of,
    last_property,
    owner_of,
    summary_of,
    version_of,
    watermark_line_of,
)
from slackwater.spark_sink.output.iceberg.store_io import store_options
from slackwater.spark_sink.output.iceberg.table_place import TablePlace, location_of
from slackwater.spark_sink.output.table_commits import TableCommits, require_columns

# The time for which a catalog's credentials are used.
_CREDENTIALS_S: Final = 600.0


class OwnedTable(TableCommits):
    """A table as a process knows it; see TableCommits.

    Args:
        place: the table's.
        application, properties: see TableCommits.
        has_lines: its commits have the watermark log's lines.
    """

    def __init__(
        self,
        place: TablePlace,
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> None:
        super().__init__(place.name, application, properties, has_lines=has_lines)
        self._place = place
        self._catalog: Catalog | None = None
        # The table as this process left it; None if it may have changed since.
        self._table: Table | None = None
        # None before this process took the table over, and without a table.
        self._owner: str | None = None
        self._columns = pa.schema([])
        self._loaded_s = 0.0
        self._versions: dict[str, int | None] = {}

    def connect(self, spark: SparkSession) -> None:
        """Find the catalog by Spark's settings. Before everything else.

        Raises:
            ObjectStoreError, PublishError: see TablePlace.open() and iceberg_errors().
        """
        with iceberg_errors(self.path):
            self._catalog = self._place.open(spark)

    @property
    def catalog(self) -> Catalog:
        """The table's catalog. After connect()."""
        assert self._catalog is not None  # noqa: S101 - see above
        return self._catalog

    @property
    def is_owner(self) -> bool:
        """Whether there is a table, and this process has taken it over or created it."""
        return self._owner is not None

    @property
    def table(self) -> Table | None:
        """The table as this process knows it, or as it is now; None without one."""
        return self._table or self._load()

    @property
    def location(self) -> str | None:
        """The place of the table's files; None if its catalog chooses it when it is created."""
        if self._place.namespace is None:
            return location_of(self._place.path)
        table = self.table
        return None if table is None else table.location().rstrip("/")

    @property
    def schema(self) -> pa.Schema:
        """The table's columns. After open()."""
        return arrow_schema(self.loaded().schema())

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns. After open()."""
        return partition_columns(self.loaded()) or ()

    @property
    def columns_of_files(self) -> pa.Schema:
        """The columns of open(), with the identifiers of the table's. After open()."""
        return with_field_ids(self._columns, self.loaded().schema())

    @property
    def store_options(self) -> Mapping[str, str]:
        """The options of the store with the table's files; see open_object_store()."""
        if self._place.namespace is None:
            return self._place.options
        table = self.table
        return {} if table is None else store_options(table.io.properties)

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Check the table's columns, and create it if it was missing; see TableCommits."""
        if not self.is_owner:
            self._create(schema, partition_by)
        self._columns = schema
        table = self.loaded()
        if features := refused_features(table, schema):
            raise ObjectStoreError(
                f"{self.path} can't be written without Spark: it has {', '.join(features)}.",
                "Choose another path, or remove the feature from the table",
            )
        written = column_types(iceberg_schema(schema))
        require_columns(self.path, column_types(table.schema()), written)

    def refresh(self) -> None:
        """Have the table loaded again: others may have altered it."""
        self._table = None

    def property(self, name: str) -> str | None:
        """Return a property of the table; see TableCommits."""
        table = self.table
        return None if table is None else table.properties.get(name)

    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed. After take_over()."""
        if not self.is_owner:
            return None
        table = self.loaded()
        if application not in self._versions:
            self._versions[application] = version_of(
                last_of(table.metadata, application, self.application)
            )
        return self._versions[application]

    def _add_snapshot(
        self,
        transaction: Transaction,
        summary: Mapping[str, str],
        added: Sequence[IcebergFile] = (),
        removed: Sequence[IcebergFile] = (),
        *,
        operation: Operation = Operation.APPEND,
    ) -> None:
        """Add a snapshot to a transaction.

        Args:
            transaction: of the table.
            summary: see _summary().
            added, removed: files.
            operation: see Rewrite.
        """
        metadata = transaction.table_metadata
        transaction.set_properties(last_property(metadata, self.application, summary))
        Rewrite(transaction, operation, summary, removed, added).commit()

    def _summary(
        self, application: str, version: int | None, line: str | None = None
    ) -> Mapping[str, str]:
        return summary_of(application, version, (self.application, self._owner or ""), line)

    def _load_and_own(self) -> None:
        self._table, self._versions, self._owner, self._line = None, {}, None, None
        table = self._load()
        if table is not None:
            self._own(table)

    def _own(self, table: Table) -> None:
        """Commit this process as the owner of a table that was loaded."""
        last = last_of(table.metadata, self.application, self.application)
        # Each take-over hands it on: there may be any number of them before the next epoch.
        self._line = watermark_line_of(last) if self._has_lines else None
        self._owner = uuid.uuid4().hex
        with iceberg_errors(self.path):
            transaction = table.transaction()
            summary = self._summary(self.application, version_of(last), self._line)
            self._add_snapshot(transaction, summary)
            commit_once(transaction)
        self._table = table

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        columns, spec = new_columns(schema, partition_by)
        with iceberg_errors(self.path):
            try:
                table = self.catalog.create_table(
                    self._place.identifier,
                    columns,
                    partition_spec=spec,
                    properties=dict(self.properties),
                )
            except TableAlreadyExistsError:
                self._require_own()
                raise
        try:
            self._own(table)
        except PublishError:
            self._owner = None
            raise

    def _require_own(self) -> None:
        """Refuse a table that was there already and belongs to no pipeline.

        Raises:
            ObjectStoreError: it is not; otherwise another process has just created it.
        """
        table = self._load()
        missing = [] if table is None else sorted(self.properties.keys() - table.properties.keys())
        if missing:
            raise ObjectStoreError(
                f"{self.path} is there already, and no pipeline has made it: it does not have the"
                f" properties {', '.join(missing)}.",
                "Rename that table, or choose another namespace or path",
            )

    def _load(self) -> Table | None:
        """Return the table as it is now; None without one."""
        with iceberg_errors(self.path):
            self._loaded_s = time.monotonic()
            try:
                return self.catalog.load_table(self._place.identifier)
            except NoSuchTableError:
                return None

    def leave_as(self, table: Table) -> None:
        """Record the table as this process has left it with a commit."""
        self._table = table

    def loaded(self) -> Table:
        """Return the table as this process left it, or as it is, if this process is the owner.

        Raises:
            PublishError: it is not, or the table is gone.
        """
        if not self.is_owner:
            raise PublishError(f"{self.path}: this process does not own the table.")
        if self._table is None or self._is_stale(self._table):
            table = self._load()
            if table is None:
                raise PublishError(f"{self.path}: the table is gone.")
            self._versions = {}
            if owner_of(table.metadata, self.application) != self._owner:
                raise PublishError(f"{self.path}: another process has taken the pipeline over.")
            self._table = table
        return self._table

    def _is_stale(self, table: Table) -> bool:
        """Return whether a catalog's credentials for the store, which expire, are to be renewed."""
        is_old = time.monotonic() - self._loaded_s > _CREDENTIALS_S
        return is_old and "s3.session-token" in table.io.properties
