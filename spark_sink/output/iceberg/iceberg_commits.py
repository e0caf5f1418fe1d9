"""Commits to an Iceberg table, in any catalog, without Spark: by pyiceberg.

A commit follows the snapshot that its table was loaded with, and is refused if that is no longer
the current one (Iceberg's specification, "Optimistic Concurrency"). Each has in its snapshot's
summary the application and its version, the low watermark, and the process that made it. A process
that takes the pipeline over makes a snapshot without files. So what a former owner holds follows
no more, and when it loads the table again, it finds another owner.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import IdentityTransform
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from slackwater.spark_sink.errors import ObjectStoreError, PublishError, commit_conflict
from slackwater.spark_sink.output.iceberg.columns import (
    arrow_schema,
    data_file,
    demands_on_rows,
    iceberg_schema,
    other_columns,
    partition_columns,
    with_field_ids,
)
from slackwater.spark_sink.output.iceberg.commit_once import commit_once
from slackwater.spark_sink.output.iceberg.iceberg_errors import iceberg_errors
from slackwater.spark_sink.output.iceberg.rewrite import Rewrite
from slackwater.spark_sink.output.iceberg.snapshots import (
    last_of,
    owner_of,
    summary_of,
    version_of,
    watermark_line_of,
)
from slackwater.spark_sink.output.iceberg.store_io import store_options
from slackwater.spark_sink.output.iceberg.table_place import TablePlace, location_of
from slackwater.spark_sink.output.table_commits import DataFile

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.manifest import DataFile as IcebergFile
    from pyspark.sql import SparkSession

_TRIES: Final = 20
# pyiceberg writes no later ones (0.12.0).
_FORMAT_VERSION_MAX: Final = 2


class IcebergCommits:
    """See TableCommits.

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
        self.path = place.name
        self.application = application
        self.properties: Mapping[str, str] = dict(properties or {})
        self._place = place
        self._has_lines = has_lines
        self._catalog: Catalog | None = None
        # As this process left it; None if it may be otherwise since.
        self._table: Table | None = None
        # None before this process took the table over, and without a table.
        self._owner: str | None = None
        self._line: str | None = None
        self._columns = pa.schema([])
        self._versions: dict[str, int | None] = {}

    def connect(self, spark: SparkSession) -> None:
        """Find the catalog by Spark's settings. Before everything else.

        Raises:
            ObjectStoreError, PublishError: see TablePlace.open() and iceberg_errors().
        """
        with iceberg_errors(self.path):
            self._catalog = self._place.open(spark)

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
        """Where the table's files are; None if its catalog says so only when it is created."""
        if self._place.namespace is None:
            return location_of(self._place.path)
        table = self.table
        return None if table is None else table.location().rstrip("/")

    @property
    def schema(self) -> pa.Schema:
        """The table's columns. After open()."""
        return arrow_schema(self._loaded().schema())

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns. After open()."""
        return partition_columns(self._loaded()) or ()

    @property
    def columns_of_files(self) -> pa.Schema:
        """The columns of open(), with the identifiers of the table's. After open()."""
        return with_field_ids(self._columns, self._loaded().schema())

    @property
    def store_options(self) -> Mapping[str, str]:
        """The options of the store with the table's files; see open_object_store()."""
        if self._place.namespace is None:
            return self._place.options
        table = self.table
        return {} if table is None else store_options(table.io.properties)

    def take_over(self) -> None:
        """Let no former owner commit any more; see TableCommits."""
        retrying = Retrying(
            retry=retry_if_exception_type(PublishError),
            stop=stop_after_attempt(_TRIES),
            reraise=True,
        )
        retrying(self._load_and_own)

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Check the table's columns, and create it if it was missing; see TableCommits."""
        if not self.is_owner:
            self._create(schema, partition_by)
        self._columns = schema
        table = self._loaded()
        if features := self._refused_features(table, schema):
            raise ObjectStoreError(
                f"{self.path} can't be written without Spark: it has {', '.join(features)}.",
                "Choose another path, or remove the feature from the table",
            )
        if other := other_columns(table.schema(), schema):
            raise ObjectStoreError(
                f"{self.path} has the columns {other[0]}; this pipeline writes {other[1]}.",
                "Choose another path, or the envelope that the table was written with",
            )

    def refresh(self) -> None:
        """Have the table loaded anew: others may have altered it."""
        self._table = None

    def property(self, name: str) -> str | None:
        """Return a property of the table; see TableCommits."""
        table = self.table
        return None if table is None else table.properties.get(name)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in one commit; see TableCommits."""
        added = iceberg_schema(schema)

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.update_schema().union_by_name(added).commit()

        self._commit(change)

    def rename_column(self, name: str, new_name: str) -> None:
        """Rename a column, in one commit."""

        def change(transaction: Transaction, table: Table) -> None:
            del table
            transaction.update_schema().rename_column(name, new_name).commit()

        self._commit(change)

    def append(
        self,
        files: Sequence[DataFile],
        application: str,
        version: int,
        line: str | None = None,
    ) -> bool:
        """Add files in one commit, and return False if it has been made before."""

        def change(transaction: Transaction, table: Table) -> None:
            added = [data_file(table, file) for file in files]
            self._add_snapshot(transaction, application, version, line, added)

        return self._commit_version(change, application, version)

    def rewrite(
        self,
        changes: Callable[[Table], tuple[Sequence[IcebergFile], Sequence[IcebergFile]]],
        application: str,
        version: int,
    ) -> bool:
        """Replace files in one commit, and return False if it has been made before.

        Args:
            changes: returns the files that go and those that come, of data and of deletes, for the
                table as it is. It is called again if another process has committed meanwhile.
            application, version: see append().
        """

        def change(transaction: Transaction, table: Table) -> None:
            removed, added = changes(table)
            summary = summary_of(application, version, (self.application, self._owner or ""), None)
            Rewrite(transaction, Operation.OVERWRITE, summary, removed, added).commit()

        return self._commit_version(change, application, version)

    def set_properties(self, properties: Callable[[Table], Mapping[str, str]]) -> None:
        """Set properties of the table as it is, in a commit that follows it.

        Args:
            properties: returns them; none for no commit.
        """

        def change(transaction: Transaction, table: Table) -> None:
            transaction.set_properties(dict(properties(table)))

        self._commit(change, lambda: not properties(self._loaded()))

    def _commit_version(
        self, change: Callable[[Transaction, Table], None], application: str, version: int
    ) -> bool:
        is_new = self._commit(change, lambda: self.has_committed(application, version))
        self._versions[application] = version
        return is_new

    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed. After take_over()."""
        if not self.is_owner:
            return None
        table = self._loaded()
        if application not in self._versions:
            self._versions[application] = version_of(last_of(table.metadata, application))
        return self._versions[application]

    def has_committed(self, application: str, version: int) -> bool:
        """Return whether an application has committed a version or a later one."""
        latest = self.last_version(application)
        return latest is not None and latest >= version

    def last_line(self) -> str | None:
        """Return the watermark log's line of the last epoch before; see TableCommits."""
        return self._line

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old snapshots and files; see TableCommits."""
        from slackwater.spark_sink.output.iceberg.table_maintenance import compact, expire

        assert self._catalog is not None  # noqa: S101 - after connect()
        with iceberg_errors(self.path):
            try:
                compact(self._catalog, self._place.identifier)
            finally:
                # Also of a table that can't be compacted.
                if keep_s is not None:
                    expire(self._catalog, self._place.identifier, self.application, keep_s)

    def _commit(
        self,
        change: Callable[[Transaction, Table], None],
        is_made: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Make a commit that follows the table as it is, and return False if it has been made.

        Others' commits may come between, such as those of a compaction.
        """
        for _ in range(_TRIES):
            table = self._loaded()
            if is_made():
                return False
            with iceberg_errors(self.path):
                transaction = table.transaction()
                try:
                    change(transaction, table)
                finally:
                    # Whatever failed, the table may have changed.
                    self._table = None
                try:
                    commit_once(transaction)
                except CommitFailedException:
                    continue
            self._table = table
            return True
        raise commit_conflict(self.path)

    def _add_snapshot(
        self,
        transaction: Transaction,
        application: str,
        version: int | None,
        line: str | None,
        files: Sequence[IcebergFile] = (),
    ) -> None:
        owner = (self.application, self._owner or "")
        summary = summary_of(application, version, owner, line)
        # With those of a while ago in one manifest, when there are many.
        append = transaction.update_snapshot(snapshot_properties=summary).merge_append()
        for file in files:
            append.append_data_file(file)
        append.commit()

    def _load_and_own(self) -> None:
        self._table, self._versions, self._owner, self._line = None, {}, None, None
        table = self._load()
        if table is not None:
            self._own(table)

    def _own(self, table: Table) -> None:
        """Commit this process as the owner of a table that was loaded."""
        last = last_of(table.metadata, self.application)
        # Each take-over hands it on: there may be any number of them before the next epoch.
        self._line = watermark_line_of(last) if self._has_lines else None
        self._owner = uuid.uuid4().hex
        with iceberg_errors(self.path):
            transaction = table.transaction()
            self._add_snapshot(transaction, self.application, version_of(last), self._line)
            commit_once(transaction)
        self._table = table

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        assert self._catalog is not None  # noqa: S101 - after connect()
        columns = assign_fresh_schema_ids(iceberg_schema(schema))
        fields = [
            PartitionField(
                columns.find_field(name).field_id,
                PARTITION_FIELD_ID_START + place,
                IdentityTransform(),
                name,
            )
            for place, name in enumerate(partition_by)
        ]
        with iceberg_errors(self.path):
            table = self._catalog.create_table(
                self._place.identifier,
                columns,
                partition_spec=PartitionSpec(*fields),
                properties=dict(self.properties),
            )
        try:
            self._own(table)
        except PublishError:
            self._owner = None
            raise

    def _load(self) -> Table | None:
        """Return the table as it is now; None without one."""
        assert self._catalog is not None  # noqa: S101 - after connect()
        with iceberg_errors(self.path):
            try:
                return self._catalog.load_table(self._place.identifier)
            except NoSuchTableError:
                return None

    def _loaded(self) -> Table:
        """Return the table of which this process is the owner."""
        if not self.is_owner:
            raise PublishError(f"{self.path}: this process does not own the table.")
        if self._table is None:
            table = self._load()
            if table is None:
                raise PublishError(f"{self.path}: the table is gone.")
            self._versions = {}
            if owner_of(table.metadata, self.application) != self._owner:
                raise PublishError(f"{self.path}: another process has taken the pipeline over.")
            self._table = table
        return self._table

    def _refused_features(self, table: Table, schema: pa.Schema) -> list[str]:
        if table.format_version > _FORMAT_VERSION_MAX:
            return [f"format version {table.format_version}"]
        if partition_columns(table) is None:
            fields = ", ".join(f"{f.name}: {f.transform}" for f in table.spec().fields)
            return [f"the partitions {fields}"]
        return demands_on_rows(table.schema(), schema)
