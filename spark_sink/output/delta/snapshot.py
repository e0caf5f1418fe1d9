"""A Delta table at a version, from its log (Delta's protocol, "Action Reconciliation").

delta-rs reads logs, too. But it does not show a file's deletion vector, which a commit that
replaces the file has to state, and it holds Python's lock at many of its requests.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import unquote

Action = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A version of a table.

    Attributes:
        version: -1 before the first.
        protocol, metadata: as their actions have them.
        files: the content of the actions that added them, by name relative to the table.
        transactions: the latest version of each application.
        committed_ms: the version's inCommitTimestamp; None if its commit has none, or was not read.
    """

    version: int
    protocol: Mapping[str, Any]
    metadata: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    transactions: Mapping[str, int]
    committed_ms: int | None = None

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        made: Mapping[str, str] = self.metadata["configuration"]
        return made

    @property
    def schema_json(self) -> str:
        """The table's columns."""
        return str(self.metadata["schemaString"])

    @property
    def partition_columns(self) -> tuple[str, ...]:
        """The table's partition columns."""
        return tuple(self.metadata["partitionColumns"])

    @property
    def features(self) -> frozenset[str]:
        """The table features that the protocol names."""
        names = (self.protocol.get(f"{kind}Features") or () for kind in ("reader", "writer"))
        return frozenset(name for some in names for name in some)

    def after(self, version: int, actions: Iterable[Action]) -> "Snapshot":
        """Return the table after a commit, or as a checkpoint has it.

        Args:
            version: the commit's.
            actions: of it, in any order; of an action's kinds only one is there.
        """
        files, transactions = dict(self.files), dict(self.transactions)
        protocol, metadata, committed_ms = self.protocol, self.metadata, None
        listed = list(actions)
        # A file whose deletion vector changes is both removed and added.
        for removed in (action["remove"] for action in listed if action.get("remove")):
            files.pop(name_of(removed), None)
        for action in listed:
            if added := action.get("add"):
                files[name_of(added)] = added
            elif transaction := action.get("txn"):
                transactions[transaction["appId"]] = transaction["version"]
            elif info := action.get("commitInfo"):
                committed_ms = info.get("inCommitTimestamp")
            protocol = action.get("protocol") or protocol
            metadata = action.get("metaData") or metadata
        return replace(
            self,
            version=version,
            protocol=protocol,
            metadata=metadata,
            files=files,
            transactions=transactions,
            committed_ms=committed_ms,
        )


EMPTY: Final = Snapshot(-1, {}, {}, {}, {})


def name_of(action: Action) -> str:
    """Return the name of a file that an action adds or removes, relative to the table."""
    return unquote(action["path"])
