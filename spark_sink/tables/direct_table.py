"""A Delta table that the driver changes by itself, by delta-rs: on a local disk or in a store.

In Cloud Storage and in Azure Spark may commit to it by Hadoop's connector, too. Both create the
next file of Delta's log only if its name is free: in Cloud Storage by generation 0; in Azure by
If-None-Match, which Hadoop asks for when it renames a commit to its name. In S3 Hadoop replaces a
file that is there, so Spark must not commit.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.delta_features import COLUMN_MAPPING, has_column_mapping
from slackwater.spark_sink.output.delta_maintenance import commit_name, forget_checksum, log_files
from slackwater.spark_sink.output.small_files import SmallFiles, local_path

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

_INTERVAL: Final = "delta.checkpointInterval"
_INTERVAL_DEFAULT: Final = "10"
# In checkpoints: old commits are looked for, which takes a list of the log.
_CLEANED_EVERY: Final = 20
_TRIES: Final = 3
_SCHEMES: Final = frozenset({"gs", "abfs", "abfss"})
# Where Spark must not commit, or by which it reaches nothing.
_SCHEMES_WITHOUT_SPARK: Final = frozenset({"s3", "s3a", "az"})
# What a table may ask of the writer of a commit that changes nothing but properties.
_FEATURES: Final = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
    }
)


def is_direct(path: str) -> bool:
    """Return whether the driver may change the tables below the URL of an object store."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme in _SCHEMES


def is_without_spark(path: str) -> bool:
    """Return whether only the driver may change the tables below a path."""
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme in _SCHEMES_WITHOUT_SPARK


class DirectTable:
    """One table.

    Args:
        path: its directory on a local disk, or its URL.
        options: see open_object_store(); None for a local disk.

    Attributes:
        path, options: as given.
    """

    def __init__(self, path: str, options: Mapping[str, str] | None = None) -> None:
        self.path = path
        self.options = None if options is None else dict(options)
        # Of an object store, where one that is loaded anew takes a request for each commit.
        self._table: DeltaTable | None = None
        # By application, as of a version of the table: asking takes a request for each commit.
        self._transactions: dict[str, int | None] = {}
        self._version = -1
        # At which it was last seen whether a checkpoint is due.
        self._looked_at: int | None = None

    @property
    def is_local(self) -> bool:
        """Whether it is on a local disk."""
        return self.options is None

    def load(self) -> DeltaTable:
        """Return the table as it is now. Inside translating().

        Raises:
            DeltaUnsupportedError: its files have other names for its columns.
        """
        from deltalake import DeltaTable

        if self.options is None:
            # One in so many commits of delta-rs writes a checkpoint.
            forget_checksum(self.path)
            table = DeltaTable(self.path)
        elif self._table is None:
            table = self._table = DeltaTable(self.path, storage_options=self.options)
        else:
            table = self._table
            table.update_incremental()
        if has_column_mapping(table):
            raise DeltaUnsupportedError(f"it has {COLUMN_MAPPING}")
        if self._looked_at is None:
            # An earlier process may have compacted the table, and stated a low watermark, since.
            self._looked_at = max(0, table.version() - 2)
        if self.is_local:
            self._transactions = {}
        return table

    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed, as the table is now.

        Raises:
            DeltaUnsupportedError, PublishError: see load() and translating().
        """
        with self.translating():
            return self.transaction_version(self.load(), application)

    def transaction_version(self, table: DeltaTable, application: str) -> int | None:
        """Return the latest version that an application has committed to the loaded table."""
        if table.version() != self._version:
            # Another process may have committed since.
            self._transactions, self._version = {}, table.version()
        if application not in self._transactions:
            self._transactions[application] = table.transaction_version(application)
        return self._transactions[application]

    def has_merged(self, table: DeltaTable, loaded: int, application: str, version: int) -> None:
        """Take note of a commit to the loaded table, and write a checkpoint if it is due.

        Args:
            table: after the commit.
            loaded: the table's version before.
            application, version: of the commit's transaction identifier.
        """
        # Else there are commits of others, maybe after this one.
        if table.version() == loaded + 1:
            self._transactions, self._version = {application: version}, table.version()
        interval = int(table.metadata().configuration.get(_INTERVAL, _INTERVAL_DEFAULT))
        passed = table.version() // interval
        if (self._looked_at or 0) // interval < passed:
            table.create_checkpoint()
            if passed % _CLEANED_EVERY == 0:
                table.cleanup_metadata()
        self._looked_at = table.version()

    def has_compacted(self, table: DeltaTable, commits: int) -> None:
        """Take note of commits to the loaded table that changed no rows.

        Args:
            table: after the commits.
            commits: how many; if there are more, others have come between.
        """
        if table.version() == self._version + commits:
            self._version = table.version()

    def set_property(self, name: str, value: str, is_due: Callable[[DeltaTable], bool]) -> None:
        """Set a property of the table, if that is due. Inside translating().

        Args:
            name: the property's.
            value: the new one.
            is_due: is called with the table that the commit would follow, without one between.

        Raises:
            DeltaUnsupportedError: the table has features that the commit would have to heed.
            PublishError: other processes go on committing at the same time, or the store fails.
        """
        # As it was left: if it is not what it was since, the name of the commit is taken.
        table = self._table or self.load()
        for _ in range(_TRIES):
            if not is_due(table) or self._commit_property(table, name, value):
                return
            table = self.load()
        raise commit_conflict(self.path)

    def _commit_property(self, table: DeltaTable, name: str, value: str) -> bool:
        """Commit a property by hand; return False if another commit has come before it.

        delta-rs lets others commit between, as the next epoch's merge, whose rows would be stated
        as of this one. And it holds Python's lock meanwhile: nobody could renew the lease.
        """
        features = set(table.protocol().writer_features or ())
        if not features <= _FEATURES:
            raise DeltaUnsupportedError(f"it has {', '.join(sorted(features - _FEATURES))}")
        commit = "\n".join(map(json.dumps, _property_actions(table, name, value)))
        if not self._log.create(commit_name(table.version() + 1), commit):
            return False
        self._version = table.version() + 1
        return True

    @cached_property
    def _log(self) -> SmallFiles:
        return log_files(self.path, self.options or {})

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Turn the errors of delta-rs into ours; after one the table is loaded anew.

        Raises:
            DeltaUnsupportedError: delta-rs can't write the table, or on a local disk can't reach
                it.
            PublishError: another process has committed, or the object store fails.
        """
        try:
            with delta_errors(self.path, is_for_spark=self.is_local):
                yield
        except BaseException:
            self._table = None
            raise


class DirectTables:
    """The tables of one sink, by their paths."""

    def __init__(self) -> None:
        # Asking costs calls to the JVM.
        self._folders: dict[str, str | None] = {}
        self._tables: dict[str, DirectTable] = {}

    def folder(self, spark: SparkSession, path: str) -> str | None:
        """Return a path on a local disk as Python names it; None if it is elsewhere."""
        if path not in self._folders:
            folder = local_path(spark, path)
            self._folders[path] = None if folder is None else str(folder)
        return self._folders[path]

    def table(
        self, spark: SparkSession, path: str, options: Mapping[str, str]
    ) -> DirectTable | None:
        """Return a table that the driver may change; None if Spark has to.

        Args:
            spark: the session.
            path: the table's.
            options: of the object store; see open_object_store().
        """
        if path not in self._tables:
            # Spark may have no connector there.
            if is_direct(path) or is_without_spark(path):
                self._tables[path] = DirectTable(path, options)
            elif (folder := self.folder(spark, path)) is not None:
                self._tables[path] = DirectTable(folder)
        return self._tables.get(path)


def _property_actions(table: DeltaTable, name: str, value: str) -> Iterator[dict[str, Any]]:
    """Yield the actions of a commit that sets a property, as Delta's protocol has them."""
    properties = json.dumps({name: value})
    yield {
        "commitInfo": {
            "timestamp": round(time.time() * 1_000),
            "operation": "SET TBLPROPERTIES",
            "operationParameters": {"properties": properties},
        }
    }
    metadata = table.metadata()
    names = {"name": metadata.name, "description": metadata.description}
    yield {
        "metaData": {
            "id": str(metadata.id),
            **{field: text for field, text in names.items() if text is not None},
            "format": {"provider": "parquet", "options": {}},
            "schemaString": table.schema().to_json(),
            "partitionColumns": list(metadata.partition_columns),
            "configuration": {**metadata.configuration, name: value},
            "createdTime": metadata.created_time,
        }
    }
