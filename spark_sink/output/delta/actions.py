"""The actions of a Delta table's commits (Delta's protocol, "Actions")."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from slackwater.spark_sink.output.delta.delta_log import now_ms
from slackwater.spark_sink.output.delta.snapshot import Action, Snapshot
from slackwater.spark_sink.output.table_commits import DataFile


def add_action(file: DataFile, *, changes_data: bool = True) -> Action:
    """Return the action that adds a file to a table.

    Args:
        file: the file.
        changes_data: whether its rows are new to the table.
    """
    added: dict[str, Any] = {
        # As a part of a URL; slashes and the signs of partitions stay.
        "path": quote(file.name, safe="/=:+,@~"),
        "partitionValues": dict(file.partition),
        "size": file.size,
        "modificationTime": now_ms(),
        "dataChange": changes_data,
    }
    return {"add": added if file.stats is None else {**added, "stats": file.stats}}


def remove_action(added: Mapping[str, Any], *, changes_data: bool = True) -> Action:
    """Return the action that removes a file of a table.

    Args:
        added: the content of the action that added it.
        changes_data: whether its rows go, and not only the file.
    """
    names = ("path", "partitionValues", "size", "deletionVector")
    said = {name: added[name] for name in names if name in added}
    return {
        "remove": {
            **said,
            "deletionTimestamp": now_ms(),
            "dataChange": changes_data,
            "extendedFileMetadata": True,
        }
    }


def changes_action(name: str, size: int) -> Action:
    """Return the action that adds a file of changed rows, for readers of changes."""
    return {"cdc": {"path": name, "partitionValues": {}, "size": size, "dataChange": False}}


def metadata_action(snapshot: Snapshot, **changed: Any) -> Action:
    """Return the action that changes some of a table's metadata."""
    return {"metaData": {**snapshot.metadata, **changed}}


def transaction_action(application: str, version: int) -> Action:
    """Return the action by which a table remembers an application's version."""
    return {"txn": {"appId": application, "version": version, "lastUpdated": now_ms()}}
