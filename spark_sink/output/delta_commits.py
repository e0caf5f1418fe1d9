"""Commits to a Delta table, on a local disk or in an object store, without Spark: by delta-rs.

A commit creates the next file of Delta's log, if its name is free. So two writers never commit the
same version; which of them may commit at all is decided by Delta's transaction identifiers
(Delta's protocol, "Transaction Identifiers"). Each commit carries two: the application's, whose
version is the low watermark, and the owner's, whose version counts take-overs. A commit that
changes an identifier which another commit has changed since its table was loaded is refused. So a
process that takes the pipeline over raises the owner's: no former owner can commit after that.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.delta_compaction import compact_and_expire
from slackwater.spark_sink.output.delta_errors import DeltaUnsupportedError, delta_errors, refusing
from slackwater.spark_sink.output.delta_features import (
    COLUMN_MAPPING,
    column_types,
    demands_on_rows,
    has_column_mapping,
    inexact_statistics,
    nullable,
    without_statistics,
)
from slackwater.spark_sink.output.delta_maintenance import (
    commits_backwards,
    forget_checksum,
    log_files,
)
from slackwater.spark_sink.output.table_commits import DataFile, require_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.transaction import CommitProperties, PostCommitHookProperties, Transaction

# As for tables that Spark creates: see Delta.spark_conf().
_CONFIGURATION: Final = {"delta.checkpointInterval": "30"}
_TRIES: Final = 20
# How many commits may expire before they are looked for, which lists the log.
_CLEANED_EVERY: Final = 30
# In what a commit says of itself.
_LINE: Final = "slackwater.line"
# Between an epoch's commit and the take-over after it are those of compactions and of others.
_COMMITS_LOOKED_AT: Final = 100


class DeltaCommits:
    """See TableCommits.

    Args:
        path: the table's URL, or its folder on a local disk.
        options: of the object store; see open_object_store().
        application: names the pipeline in transaction identifiers.
        properties: of a table that is created.
        has_lines: its commits have the watermark log's lines.

    Attributes:
        path, options, application, properties: as given.
    """

    def __init__(
        self,
        path: str,
        options: Mapping[str, str],
        application: str,
        properties: Mapping[str, str] | None = None,
        *,
        has_lines: bool = True,
    ) -> None:
        self.path = path.rstrip("/")
        self.options = dict(options)
        self.application = application
        self._log = log_files(self.path, options)
        self.properties: Mapping[str, str] = dict(properties or {})
        self._owner_application = f"{application} owner"
        # As this process left it; None if it may be otherwise since.
        self._table: DeltaTable | None = None
        # Counts those that took the pipeline over; 0 before this process did, or without a table.
        self._owner = 0
        self._line: str | None = None
        self._has_lines = has_lines
        self._versions: dict[str, int | None] = {}

    @property
    def is_owner(self) -> bool:
        """Whether there is a table, and this process has taken it over or created it."""
        return self._owner > 0

    @property
    def schema_json(self) -> str:
        """The table's columns, as Delta's log and Spark have them. After open()."""
        return self._loaded().schema().to_json()

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns. After open()."""
        return tuple(self._loaded().metadata().partition_columns)

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
        table = self._loaded()
        mapping = [COLUMN_MAPPING] if has_column_mapping(table) else []
        if features := mapping + demands_on_rows(table):
            with refusing(self.path):
                raise DeltaUnsupportedError(f"it has {', '.join(features)}")
        require_columns(self.path, column_types(table.schema()), column_types(nullable(schema)))

    def refresh(self) -> None:
        """Have the table loaded anew: others may have altered it."""
        self._table = None

    def property(self, name: str) -> str | None:
        """Return a property of the table; see TableCommits."""
        table = self._loaded() if self.is_owner else self._load()
        return None if table is None else table.metadata().configuration.get(name)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in one commit; see TableCommits."""
        table = self._loaded()
        with self._committing(table):
            table.alter.add_columns(nullable(schema).fields, commit_properties=self._properties())

    def rewrite(self, rows: Callable[[DeltaTable], pa.RecordBatchReader]) -> None:
        """Replace the table's rows and columns, in a commit that directly follows what was read.

        Args:
            rows: returns those that the table gets, from what it has.

        Raises:
            ObjectStoreError, PublishError: see append().
        """
        from deltalake import write_deltalake

        table = self._loaded()
        with self._committing(table):
            made = rows(table)
            types = column_types(nullable(made.schema))
            write_deltalake(
                table,
                made,
                mode="overwrite",
                schema_mode="overwrite",
                writer_properties=without_statistics(inexact_statistics(types)),
                commit_properties=self._properties(retries=0),
            )

    def append(
        self,
        files: Sequence[DataFile],
        application: str,
        version: int,
        line: str | None = None,
    ) -> bool:
        """Add files in one commit, and return False if it has been made before."""
        from deltalake.transaction import AddAction, RemoveAction, Transaction

        table = self._loaded()
        if self.has_committed(application, version):
            return False
        now_ms = round(time.time() * 1_000)
        added: list[AddAction | RemoveAction] = [
            AddAction(
                file.name,
                file.size,
                file.partition,
                now_ms,
                data_change=True,
                stats=file.stats or "{}",
            )
            for file in files
        ]
        with self._committing(table):
            table.create_write_transaction(
                added,
                "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=self._properties(Transaction(application, version), line=line),
                post_commithook_properties=_hooks(table.version() + 1),
            )
        self._versions[application] = version
        return True

    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed. After take_over()."""
        if not self.is_owner:
            return None
        table = self._loaded()
        if application not in self._versions:
            with self._errors():
                self._versions[application] = table.transaction_version(application)
        return self._versions[application]

    def has_committed(self, application: str, version: int) -> bool:
        """Return whether an application has committed a version or a later one."""
        latest = self.last_version(application)
        return latest is not None and latest >= version

    def last_line(self) -> str | None:
        """Return the watermark log's line of the last epoch before; see TableCommits."""
        return self._line

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; see TableCommits."""
        compact_and_expire(self.path, self.options, keep_s)

    def _read_line(self, table: DeltaTable) -> str | None:
        """Return the line in the last commits of a table."""
        commits = commits_backwards(self._log, table.version())
        for _, actions in islice(commits, _COMMITS_LOOKED_AT):
            for action in actions:
                line: str | None = action.get("commitInfo", {}).get(_LINE)
                if line is not None:
                    return line
        return None

    def _load_and_own(self) -> None:
        self._table, self._versions, self._owner, self._line = None, {}, 0, None
        table = self._load()
        if table is None:
            return
        # Each take-over hands it on: there may be any number of them before the next epoch.
        self._line = self._read_line(table) if self._has_lines else None
        with self._errors():
            self._owner = (table.transaction_version(self._owner_application) or 0) + 1
        with self._committing(table):
            table.create_write_transaction(
                [],
                "append",
                table.schema(),
                list(table.metadata().partition_columns),
                commit_properties=self._properties(line=self._line),
            )

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        from deltalake import DeltaTable

        self._owner = 1
        try:
            with self._errors():
                self._table = DeltaTable.create(
                    self.path,
                    nullable(schema),
                    partition_by=list(partition_by),
                    # At once: delta-rs holds Python's lock while it changes properties.
                    configuration={**_CONFIGURATION, **self.properties},
                    storage_options=self.options,
                    commit_properties=self._properties(),
                    # Some are the pipeline's own.
                    raise_if_key_not_exists=False,
                )
        except PublishError:
            self._owner = 0
            raise

    def _load(self) -> DeltaTable | None:
        """Return the table as it is now; None without one."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        with self._errors():
            try:
                return DeltaTable(self.path, storage_options=self.options)
            except TableNotFoundError:
                return None

    def _loaded(self) -> DeltaTable:
        """Return the table of which this process is the owner."""
        if not self.is_owner:
            raise PublishError(f"{self.path}: this process does not own the table.")
        if self._table is None:
            table = self._load()
            if table is None:
                raise PublishError(f"{self.path}: the table is gone.")
            self._versions = {}
            if not self._has_owner(table):
                raise PublishError(f"{self.path}: another process has taken the pipeline over.")
            self._table = table
        return self._table

    def _has_owner(self, table: DeltaTable) -> bool:
        with self._errors():
            return table.transaction_version(self._owner_application) == self._owner

    @contextmanager
    def _committing(self, table: DeltaTable) -> Iterator[None]:
        """Load what is committed inside; if that fails, the table is loaded anew."""
        self._table = None
        version = table.version()
        # The commit may write a checkpoint.
        forget_checksum(self.path)
        with self._errors():
            yield
            table.update_incremental()
        # Another commit may be that of a process that has taken the pipeline over.
        if table.version() <= version + 1:
            self._table = table

    def _properties(
        self, *transactions: Transaction, line: str | None = None, retries: int | None = None
    ) -> CommitProperties:
        from deltalake.transaction import CommitProperties, Transaction

        owner = Transaction(self._owner_application, self._owner)
        metadata = {} if line is None else {_LINE: line}
        return CommitProperties(metadata, retries, app_transactions=[*transactions, owner])

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn the errors of delta-rs into ours.

        Raises:
            ObjectStoreError: the table has features that delta-rs can't write.
            PublishError: see delta_errors().
        """
        with refusing(self.path), delta_errors(self.path):
            yield


def _hooks(version: int) -> PostCommitHookProperties:
    """Return what delta-rs does after the commit of a version; None leaves it to the table."""
    from deltalake.transaction import PostCommitHookProperties

    cleans_up = None if version % _CLEANED_EVERY == 0 else False
    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=cleans_up)
