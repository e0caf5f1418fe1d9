"""A Delta table that the driver changes by itself, by delta-rs: on a local disk or in a store.

A commit creates the next file of Delta's log only if its name is free, as Spark's do on a disk.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from slackwater.spark_sink.errors import commit_conflict
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors
from slackwater.spark_sink.output.delta_features import COLUMN_MAPPING, has_column_mapping
from slackwater.spark_sink.output.delta_maintenance import commit_name, forget_checksum, log_files
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.output.small_files import SmallFiles

if TYPE_CHECKING:
    from deltalake import DeltaTable

_INTERVAL: Final = "delta.checkpointInterval"
_INTERVAL_DEFAULT: Final = "10"
# In checkpoints: old commits are looked for, which takes a list of the log.
_CLEANED_EVERY: Final = 20
_TRIES: Final = 3
_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_COMMIT_TIMESTAMP: Final = "inCommitTimestamp"
# What a table may ask of the writer of a commit that changes nothing but properties: nothing, but
# for the commit's timestamp. Of others, as catalogManaged, the file would not be the commit.
_FEATURES: Final = frozenset(
    {
        "allowColumnDefaults",
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "checkpointProtection",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "invariants",
        "materializePartitionColumns",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)


class DirectTable:
    """One table.

    Args:
        path: its directory on a local disk, or its URL.
        options: of an object store; see open_object_store().

    Attributes:
        path, options: as given.
    """

    def __init__(self, path: str, options: Mapping[str, str] = MappingProxyType({})) -> None:
        self.path = path
        self.options = dict(options)
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
        return not is_object_store(self.path)

    def load_to_merge(self) -> DeltaTable:
        """Return the table as it is now. Inside translating().

        Raises:
            DeltaUnsupportedError: its files have other names for its columns.
        """
        table = self.load()
        if has_column_mapping(table):
            raise DeltaUnsupportedError(f"it has {COLUMN_MAPPING}")
        return table

    def load(self) -> DeltaTable:
        """Return the table as it is now, whatever its columns. Inside translating()."""
        from deltalake import DeltaTable

        if self.is_local:
            # One in so many commits of delta-rs writes a checkpoint.
            forget_checksum(self.path)
            table = DeltaTable(self.path)
        elif self._table is None:
            table = self._table = DeltaTable(self.path, storage_options=self.options)
        else:
            table = self._table
            table.update_incremental()
        if self._looked_at is None:
            # An earlier process may have compacted the table, and stated a low watermark, since.
            self._looked_at = max(0, table.version() - 2)
        if self.is_local:
            self._transactions = {}
        return table

    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed, as the table is now.

        Raises:
            DeltaUnsupportedError, PublishError: see translating().
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
        info = dict[str, Any]()
        if table.metadata().configuration.get(_COMMIT_TIMESTAMPS) == "true":
            info[_COMMIT_TIMESTAMP] = self._next_timestamp(table.version())
        commit = "\n".join(map(json.dumps, _property_actions(table, name, value, info)))
        if not self._log.create(commit_name(table.version() + 1), commit):
            return False
        self._version = table.version() + 1
        return True

    def _next_timestamp(self, version: int) -> int:
        """Return the timestamp of the commit after a version: later than that one's."""
        first, _, _ = (self._log.read(commit_name(version)) or "{}").partition("\n")
        before: int | None = json.loads(first).get("commitInfo", {}).get(_COMMIT_TIMESTAMP)
        if before is None:
            raise DeltaUnsupportedError(f"version {version} has no {_COMMIT_TIMESTAMP}")
        return max(_now_ms(), before + 1)

    @cached_property
    def _log(self) -> SmallFiles:
        return log_files(self.path, self.options)

    @contextmanager
    def translating(self, *, is_for_spark: bool = False) -> Iterator[None]:
        """Turn the errors of delta-rs into ours; after one the table is loaded anew.

        Args:
            is_for_spark: see delta_errors().

        Raises:
            DeltaUnsupportedError: delta-rs can't write the table.
            PublishError: another process has committed, or the disk or the object store fails.
        """
        try:
            with delta_errors(self.path, is_for_spark=is_for_spark):
                yield
        except BaseException:
            self._table = None
            raise


def _now_ms() -> int:
    return round(time.time() * 1_000)


def _property_actions(
    table: DeltaTable, name: str, value: str, info: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield the actions of a commit that sets a property, as Delta's protocol has them.

    Args:
        table: before the commit.
        name, value: the property's.
        info: what else the commit says of itself.
    """
    properties = json.dumps({name: value})
    yield {
        "commitInfo": {
            **info,
            "timestamp": _now_ms(),
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
