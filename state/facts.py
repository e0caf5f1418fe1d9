"""What the metadata store holds: frozen records, no database.

Lineage facts (this partition exists, these are its parents, it ended at t) are truths about the
change stream. They are only ever added, and adding one twice changes nothing, so a task that runs
twice does no harm.

All times are whole nanoseconds since the Unix epoch, UTC.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class Partition:
    """A change stream partition and what is known of its lineage.

    Attributes:
        token: the partition token, as Spanner gave it.
        start_timestamp_ns: the start_timestamp of the child partitions record that announced it;
            the partition holds records from this time on, inclusive.
        parents: the parent partition tokens; empty for a partition that a query with a NULL
            partition token announced.
        end_timestamp_ns: when the partition ended, which is the start_timestamp of its children;
            None while it is not known to have ended. The partition covers [start, end).
        end_found_ns: the low watermark at which the epoch that first showed the end began; None
            as long as end_timestamp_ns is. An epoch that starts at or before it has to read the
            partition (again), whatever end_timestamp_ns says: see scheduler.lineage.is_finished.
    """

    token: str
    start_timestamp_ns: int
    parents: frozenset[str] = frozenset()
    end_timestamp_ns: int | None = None
    end_found_ns: int | None = None

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError("a partition needs a token")
        if self.token in self.parents:
            raise ValueError(f"partition {self.token!r} can't be its own parent")
        if (self.end_timestamp_ns is None) != (self.end_found_ns is None):
            raise ValueError("end_timestamp_ns and end_found_ns are known together or not at all")
        if self.end_timestamp_ns is not None and self.end_timestamp_ns < self.start_timestamp_ns:
            raise ValueError(f"partition {self.token!r} ends before it starts")


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt at an epoch: the records with start_ns < commit_timestamp <= end_ns.

    A replayed epoch is a new plan of the same cut; arrivals and claims belong to a plan.
    """

    plan_id: str
    pipeline: str
    start_ns: int
    end_ns: int

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError(f"plan {self.plan_id} ends at {self.end_ns}, before {self.start_ns}")


class Wanted(StrEnum):
    """What an operator wants of a pipeline; the reader obeys when it chooses the next epoch."""

    RUNNING = "running"
    DRAINING = "draining"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named pipeline and where it stands.

    Attributes:
        name: keys everything else in the store.
        source: the change stream, as projects/P/instances/I/databases/D/changeStreams/S.
        low_watermark_ns: the end of the last epoch that the sink committed; None before it.
        planned_watermark_ns: the end of the last epoch planned; None before the first.
        wanted: what an operator wants of it.
    """

    name: str
    source: str
    low_watermark_ns: int | None = None
    planned_watermark_ns: int | None = None
    wanted: Wanted = Wanted.RUNNING


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that the sink committed, for those who watch; nothing is derived from it.

    Attributes:
        pipeline: the pipeline's name.
        start_ns, end_ns: the cut (start_ns, end_ns]; end_ns is the epoch's low watermark.
        records: data change records in the epoch.
        transactions: transactions in the epoch.
        partitions: partition tokens with records in the epoch.
        committed_at_ns: when the sink had committed it, by the driver's clock.
        seconds: from planning to commit.
    """

    pipeline: str
    start_ns: int
    end_ns: int
    records: int
    transactions: int
    partitions: int
    committed_at_ns: int
    seconds: float
