"""Commits to a Delta table, on a local disk or in an object store, without Spark.

A commit creates the next file of Delta's log, if its name is free. So two writers never commit the
same version; which of them may commit at all is decided by Delta's transaction identifiers
(Delta's protocol, "Transaction Identifiers"). Each commit carries two: the application's, whose
version is the low watermark, and the owner's, whose version counts take-overs. A commit directly
follows a version whose owner this process is. So a process that takes the pipeline over raises the
owner's: no former owner can commit after that.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import pyarrow as pa

from slackwater.spark_sink.errors import PublishError, commit_conflict
from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.actions import (
    add_action,
    metadata_action,
    transaction_action,
)
from slackwater.spark_sink.output.delta.compaction import compact
from slackwater.spark_sink.output.delta.delta_log import DeltaLog, now_ms
from slackwater.spark_sink.output.delta.errors import unsupported
from slackwater.spark_sink.output.delta.expiry import expire
from slackwater.spark_sink.output.delta.features import (
    column_types,
    demands_on_rows,
    mapped,
    maps_columns,
    protocol_of,
    refused,
    schema_text,
)
from slackwater.spark_sink.output.delta.log_files import commits_backwards, log_files
from slackwater.spark_sink.output.delta.owners import NEVER, Moment, is_long_ago, new_owner, now
from slackwater.spark_sink.output.delta.rows import DeltaRows
from slackwater.spark_sink.output.delta.snapshot import EMPTY, Action, Snapshot
from slackwater.spark_sink.output.table_commits import DataFile, TableCommits, require_columns

# The properties of a new table. By default one commit in ten has a checkpoint.
_PROPERTIES: Final = {"delta.checkpointInterval": "30"}
_TRIES: Final = 20
# The fields of a commit's own information.
_LINE: Final = "slackwater.line"
# Between an epoch's commit and the take-over after it are those of compactions and of others.
_COMMITS_LOOKED_AT: Final = 100
# Returns the actions that a commit adds to the log, for the table as it is; None for no commit.
Change = Callable[[Snapshot], Sequence[Action] | None]


class DeltaCommits(TableCommits):
    """The TableCommits of a Delta table.

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
        super().__init__(path.rstrip("/"), application, properties, has_lines=has_lines)
        self.options = dict(options)
        self._log = DeltaLog(self.path, options)
        self._owner_application = f"{application} owner"
        # The table as this process left it; None if it is to be loaded.
        self._snapshot: Snapshot | None = None
        # When it was the latest.
        self._current = NEVER
        # Of the owner, as new_owner() makes it; 0 before this process is, or without a table.
        self._owner = 0

    @property
    def is_owner(self) -> bool:
        """Whether there is a table, and this process has taken it over or created it."""
        return self._owner > 0

    @property
    def snapshot(self) -> Snapshot:
        """The table as this process knows it. After open()."""
        return self._loaded()

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns. After open()."""
        return self._loaded().partition_columns

    def open(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        """Check the table's columns, and create it if it was missing; see TableCommits."""
        if not self.is_owner:
            self._create(schema, partition_by)
        snapshot = self._loaded()
        self._refuse(demands_on_rows(snapshot))
        written, _ = schema_text(schema, {})
        require_columns(self.path, column_types(snapshot.schema_json), column_types(written))

    def refresh(self) -> None:
        """Have the table loaded again: others may have altered it."""
        self._current = NEVER

    def property(self, name: str) -> str | None:
        """Return a property of the table; see TableCommits."""
        snapshot = self._loaded() if self.is_owner else self._log.load()
        return None if snapshot is None else snapshot.properties.get(name)

    def add_columns(self, schema: pa.Schema) -> None:
        """Add columns, in one commit; see TableCommits."""
        added, _ = schema_text(schema, {})

        def change(snapshot: Snapshot) -> Sequence[Action]:
            text, properties = _merged_schema(snapshot.schema_json, added), snapshot.properties
            if maps_columns(properties):
                data = DataFolder(self.path, self.options)
                self._refuse(DeltaRows(data, snapshot).former_values(column_types(added)))
                text, properties = mapped(text, properties)
            return [metadata_action(snapshot, schemaString=text, configuration=dict(properties))]

        self._commit("ADD COLUMNS", change)

    def append(
        self,
        files: Sequence[DataFile],
        application: str,
        version: int,
        line: str | None = None,
    ) -> bool:
        """Add files in one commit, and return False if it has been made before."""
        added = [add_action(file) for file in files]
        return self._commit_version(
            "WRITE", lambda _: added, application, version, is_append=True, line=_line_fields(line)
        )

    def rewrite(
        self,
        change: Change,
        application: str,
        version: int,
        forget: Callable[[], None] = lambda: None,
    ) -> bool:
        """Replace files in one commit, and return False if it has been made before.

        Args:
            change: returns the actions that the commit adds, for the table as it is. It is called
                again if another process has committed meanwhile.
            application, version: see append().
            forget: removes the files of a refused attempt.
        """
        return self._commit_version("MERGE", change, application, version, forget=forget)

    def replace_table(self, change: Change) -> None:
        """Write the table again, in one commit; see rewrite()."""
        self._commit("WRITE", change, {"mode": "Overwrite"})

    def set_properties(self, properties: Callable[[], Mapping[str, str]]) -> None:
        """Set properties, in one commit; see TableCommits."""
        said: dict[str, str] = {}

        def change(snapshot: Snapshot) -> Sequence[Action] | None:
            made = properties()
            said["properties"] = json.dumps(dict(made))
            configuration = {**snapshot.properties, **made}
            return [metadata_action(snapshot, configuration=configuration)] if made else None

        self._commit("SET TBLPROPERTIES", change, said)

    def last_version(self, application: str) -> int | None:
        """Return the latest version that an application has committed. After take_over()."""
        return self._loaded().transactions.get(application) if self.is_owner else None

    def maintain(self, keep_s: float | None) -> None:
        """Compact the table, and remove old versions; see TableCommits."""
        try:
            compact(self.path, self.options)
        finally:
            # Also of a table that can't be compacted.
            if keep_s is not None:
                expire(self.path, self.options, keep_s)

    def _commit_version(
        self,
        operation: str,
        change: Change,
        application: str,
        version: int,
        **commit: Any,
    ) -> bool:
        transaction = transaction_action(application, version)

        def once(snapshot: Snapshot) -> Sequence[Action] | None:
            if snapshot.transactions.get(application, version - 1) >= version:
                return None
            return [transaction, *(change(snapshot) or ())]

        return self._commit(operation, once, **commit)

    def _commit(
        self,
        operation: str,
        change: Change,
        parameters: Mapping[str, str] | None = None,
        *,
        forget: Callable[[], None] = lambda: None,
        is_append: bool = False,
        line: Mapping[str, str] | None = None,
    ) -> bool:
        """Make a commit that directly follows the table as it is; return False for none.

        Others' commits may come between, such as those of a compaction.

        Args:
            operation, parameters, is_append, line: see DeltaLog.commit().
            change: returns the actions that the commit adds to the log; None for no commit.
            forget: removes the files of a refused attempt.
        """
        for _ in range(_TRIES):
            snapshot = self._loaded()
            made = change(snapshot)
            if made is None:
                return False
            # After any error the table may have changed.
            begun = self._current
            self.refresh()
            actions = [transaction_action(self._owner_application, self._owner), *made]
            after = self._log.commit(
                snapshot, operation, actions, parameters, is_append=is_append, line=line
            )
            if after is not None:
                if is_long_ago(begun):
                    # The number may have been free again: see DeltaLog.update().
                    self._snapshot = None
                    self._require_all(actions)
                else:
                    self._is_at(after)
                self._log.write_checkpoint_if_due(self._loaded())
                return True
            forget()
        raise commit_conflict(self.path)

    def _require_all(self, actions: Sequence[Action]) -> None:
        """Require that the table remembers the versions of a commit."""
        transactions = self._loaded().transactions
        for made in (action["txn"] for action in actions if "txn" in action):
            if transactions.get(made["appId"], made["version"] - 1) < made["version"]:
                raise commit_conflict(self.path)

    def _read_line(self, snapshot: Snapshot) -> str | None:
        """Return the line in the last commits of a table."""
        commits = commits_backwards(log_files(self.path, self.options), snapshot.version)
        for _, actions in islice(commits, _COMMITS_LOOKED_AT):
            for action in actions:
                line: str | None = action.get("commitInfo", {}).get(_LINE)
                if line is not None:
                    return line
        return None

    def _load_and_own(self) -> None:
        self._snapshot, self._owner, self._line = None, 0, None
        begun = now()
        snapshot = self._log.load()
        if snapshot is None:
            return
        self._refuse(refused(snapshot))
        # Each take-over hands it on: there may be any number of them before the next epoch.
        self._line = self._read_line(snapshot) if self._has_lines else None
        owner = new_owner(snapshot.transactions.get(self._owner_application, 0))
        actions = [transaction_action(self._owner_application, owner)]
        said = _line_fields(self._line)
        after = self._log.commit(snapshot, "WRITE", actions, {"mode": "Append"}, line=said)
        self._own(after, owner, begun)

    def _create(self, schema: pa.Schema, partition_by: Sequence[str]) -> None:
        begun = now()
        # The number of its first commit is free again after that was removed.
        if self._log.load() is not None:
            raise commit_conflict(self.path)
        text, properties = schema_text(schema, {**_PROPERTIES, **self.properties})
        metadata = {
            "id": str(uuid.uuid4()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": text,
            "partitionColumns": list(partition_by),
            "configuration": properties,
            "createdTime": now_ms(),
        }
        protocol = protocol_of(properties)
        new = EMPTY.after(-1, [{"protocol": protocol}, {"metaData": metadata}])
        self._refuse(refused(new))
        owner = new_owner(0)
        transaction = transaction_action(self._owner_application, owner)
        actions: list[Action] = [{"protocol": protocol}, {"metaData": metadata}, transaction]
        self._own(self._log.commit(EMPTY, "CREATE TABLE", actions), owner, begun)

    def _own(self, after: Snapshot | None, owner: int, begun: Moment) -> None:
        """Record the commit by which this process becomes the owner.

        Args:
            after: the table after it; None if another commit came before it.
            owner: its number.
            begun: when the table was read.
        """
        # After long the number of the commit may have been free again: see DeltaLog.update().
        if after is None or is_long_ago(begun):
            raise commit_conflict(self.path)
        self._owner = owner
        self._is_at(after)

    def _is_at(self, snapshot: Snapshot) -> None:
        self._snapshot, self._current = snapshot, now()

    def _loaded(self) -> Snapshot:
        """Return the table of which this process is the owner."""
        if not self.is_owner:
            raise PublishError(f"{self.path}: this process does not own the table.")
        if self._snapshot is not None and not is_long_ago(self._current):
            return self._snapshot
        last, self._snapshot = self._snapshot, None
        snapshot = self._log.load() if last is None else self._log.update(last)
        if snapshot is None:
            raise PublishError(f"{self.path}: the table is gone.")
        if snapshot.transactions.get(self._owner_application) != self._owner:
            raise PublishError(f"{self.path}: another process has taken the pipeline over.")
        self._refuse(refused(snapshot))
        self._is_at(snapshot)
        return snapshot

    def _refuse(self, features: Sequence[str]) -> None:
        if features:
            raise unsupported(self.path, features)


def _line_fields(line: str | None) -> dict[str, str]:
    return {} if line is None else {_LINE: line}


def _merged_schema(text: str, added: str) -> str:
    """Return a table's columns with those of others, and structs with the fields of others."""

    def unite(fields: list[Any], others: Sequence[Any]) -> None:
        own = {field["name"]: field for field in fields}
        for other in others:
            field = own.get(other["name"])
            if field is None:
                fields.append(other)
            elif isinstance(other["type"], dict) and other["type"]["type"] == "struct":
                unite(field["type"]["fields"], other["type"]["fields"])

    schema = json.loads(text)
    unite(schema["fields"], json.loads(added)["fields"])
    return json.dumps(schema)
