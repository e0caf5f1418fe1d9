"""The choice of an Iceberg table's snapshots that are not needed any more."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of a table.

    Attributes:
        id: Iceberg's number for it.
        committed_ms: since the Unix epoch.
        application: which committed it; None if it does not say.
    """

    id: int
    committed_ms: int
    application: str | None


def expire_before_ms(
    snapshots: Sequence[Snapshot],
    published: int | None,
    application: str,
    replaced_before_ms: int,
) -> int:
    """Return a time; snapshots that were committed before it are not needed any more.

    The snapshot that was current at the given time stays: a reader may have begun to read it. So
    does the published one, and the last one of an application: it says which epochs the table has.

    Args:
        snapshots: of the table.
        published: the number of the snapshot at the published low watermark.
        application: the pipeline's.
        replaced_before_ms: since the Unix epoch.
    """
    own = [snapshot.committed_ms for snapshot in snapshots if snapshot.application == application]
    before = [s.committed_ms for s in snapshots if s.committed_ms <= replaced_before_ms]
    needed = [snapshot.committed_ms for snapshot in snapshots if snapshot.id == published]
    return min([max(before, default=replaced_before_ms), *needed, *([max(own)] if own else [])])
