"""The log of a Delta table: versions, each of which is added only if its number is free."""

import io
import json
import time
import uuid
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import pyarrow.parquet as pq
from deltalake import DeltaTable

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output.data_folder import DataFolder
from slackwater.spark_sink.output.delta.errors import delta_errors
from slackwater.spark_sink.output.delta.log_files import (
    LAST_CHECKPOINT,
    LOG,
    actions_of,
    checkpoint_files,
    commit_name,
    commit_versions,
    forget_checksum,
    log_files,
)
from slackwater.spark_sink.output.delta.snapshot import EMPTY, Action, Snapshot

_KINDS: Final = ("protocol", "metaData", "txn", "add", "sidecar")
_INTERVAL: Final = "delta.checkpointInterval"
_INTERVAL_DEFAULT: Final = 10
# In checkpoints: removing old commits takes a list of the log.
_CLEANED_EVERY: Final = 20
_COMMIT_TIMESTAMPS: Final = "delta.enableInCommitTimestamps"
_ENGINE: Final = "slackwater"


class DeltaLog:
    """One table's.

    Args:
        path: the table's directory or URL.
        options: of the object store; see open_object_store().

    Attributes:
        path, options: as given.
    """

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self.path = path.rstrip("/")
        self.options = dict(options)
        self._log = log_files(self.path, options)
        self._data = DataFolder(self.path, options)
        # As far as it is known; -1 for none.
        self._checkpoint = -1

    def load(self, version: int | None = None) -> Snapshot | None:
        """Return a version of the table; None without a table.

        Args:
            version: None for the latest.

        Raises:
            PublishError: the version is gone, or the store fails.
        """
        with delta_errors(self.path):
            return self._load(version)

    def _load(self, version: int | None) -> Snapshot | None:
        names = self._names(version)
        commits, checkpoints = commit_versions(names), checkpoint_files(names)
        if not commits and not checkpoints:
            return None
        latest = max(commits | checkpoints.keys()) if version is None else version
        base = max((place for place in checkpoints if place <= latest), default=-1)
        snapshot = EMPTY if base < 0 else self._read_checkpoint(base, checkpoints[base])
        if version is None:
            self._checkpoint = base
        return self._onward(snapshot, commits, latest)

    def update(self, snapshot: Snapshot) -> Snapshot:
        """Return the latest version of a table that was loaded before.

        Raises:
            PublishError: the table is gone, or the store fails.
        """
        # Not only the next number: it is free again if all later commits but a few were removed.
        with delta_errors(self.path):
            names = self._log.names(after=commit_name(snapshot.version))
        later = commit_versions(names)
        if later or checkpoint_files(names):
            if snapshot.version + 1 in later:
                return self._onward(snapshot, later, max(later))
            loaded = self.load()
            if loaded is None:
                raise PublishError(f"{self.path}: the table is gone.")
            return loaded
        return snapshot

    def commit(
        self,
        snapshot: Snapshot,
        operation: str,
        actions: Sequence[Action],
        parameters: Mapping[str, str] | None = None,
        *,
        is_append: bool = False,
        line: Mapping[str, str] | None = None,
    ) -> Snapshot | None:
        """Add the version after a snapshot, and return it; None if it has been added.

        Args:
            snapshot: EMPTY for a table that is created.
            operation, parameters: of the commit's own information.
            actions: without the commit's own.
            is_append: it adds rows without having looked at others.
            line: the watermark log's, for that information.

        Raises:
            PublishError: the store fails. Then the commit may have been made.
        """
        version = snapshot.version + 1
        info: dict[str, Any] = {
            "timestamp": now_ms(),
            "operation": operation,
            "operationParameters": dict(parameters or {}),
            "isBlindAppend": is_append,
            "engineInfo": _ENGINE,
            # A client that repeats a request without an answer finds its own commit.
            "txnId": str(uuid.uuid4()),
            **(line or {}),
        }
        metadata = next((action["metaData"] for action in actions if "metaData" in action), None)
        properties = (metadata or snapshot.metadata)["configuration"]
        if properties.get(_COMMIT_TIMESTAMPS) == "true":
            info = {"inCommitTimestamp": self._next_timestamp(snapshot), **info}
        made = [{"commitInfo": info}, *actions]
        text = "\n".join(json.dumps(action) for action in made)
        with delta_errors(self.path):
            if self._log.create(commit_name(version), text, is_durable=True) is None:
                return None
        return snapshot.after(version, made)

    def write_checkpoint_if_due(self, snapshot: Snapshot) -> None:
        """Write a checkpoint of the latest version after so many commits; delta-rs does it.

        Raises:
            PublishError: the store fails.
        """
        interval = int(snapshot.properties.get(_INTERVAL, _INTERVAL_DEFAULT))
        if snapshot.version - max(self._checkpoint, 0) < interval:
            return
        with delta_errors(self.path):
            forget_checksum(self.path)
            table = DeltaTable(self.path, storage_options=self.options)
            table.create_checkpoint()
            self._checkpoint = table.version()
            if snapshot.version // interval % _CLEANED_EVERY == 0:
                table.cleanup_metadata()

    def _names(self, version: int | None) -> list[str]:
        """Return the names of the log's files, or of those from the last checkpoint on."""
        if version is None and (text := self._log.read(LAST_CHECKPOINT)) is not None:
            names = self._log.names(after=f"{json.loads(text)['version']:020d}")
            if checkpoint_files(names):
                return names
        return self._log.names()

    def _onward(self, snapshot: Snapshot, commits: Collection[int], latest: int) -> Snapshot:
        versions = range(snapshot.version + 1, latest + 1)
        texts = self._log.read_all([commit_name(v) for v in versions if v in commits])
        if len(texts) < len(versions) or not all(texts):
            raise PublishError(f"{self.path}: commits up to version {latest} were removed.")
        for version, text in zip(versions, texts, strict=True):
            snapshot = snapshot.after(version, actions_of(text or ""))
        return snapshot

    def _read_checkpoint(self, version: int, names: Sequence[str]) -> Snapshot:
        actions = [action for name in names for action in self._read_actions(f"{LOG}/{name}")]
        for sidecar in [action["sidecar"] for action in actions if action.get("sidecar")]:
            actions += self._read_actions(f"{LOG}/_sidecars/{sidecar['path']}")
        return EMPTY.after(version, actions)

    def _read_actions(self, name: str) -> list[Action]:
        content = self._data.read(name)
        if content is None:
            raise PublishError(f"{self.path}: the checkpoint {name} was removed.")
        if name.endswith(".json"):
            return list(actions_of(content.decode()))
        file = pq.ParquetFile(io.BytesIO(content))
        kinds = [kind for kind in _KINDS if kind in file.schema_arrow.names]
        return [
            {kind: _without_nulls(action) for kind, action in row.items() if action is not None}
            for row in file.read(kinds).to_pylist(maps_as_pydicts="strict")
        ]

    def _next_timestamp(self, snapshot: Snapshot) -> int:
        """Return the timestamp of the commit after a version: later than that one's."""
        before = snapshot.committed_ms
        if before is None and snapshot.version >= 0:
            text = self._log.read(commit_name(snapshot.version)) or ""
            before = EMPTY.after(snapshot.version, actions_of(text)).committed_ms
        return now_ms() if before is None else max(now_ms(), before + 1)


def now_ms() -> int:
    """Return the time in milliseconds since the Unix epoch."""
    return round(time.time() * 1_000)


def _without_nulls(action: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in action.items() if value is not None}
