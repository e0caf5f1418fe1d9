"""The records that the metadata store holds, as frozen values without a database.

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
        end_timestamp_ns: the partition's end, which is the start_timestamp of its children; None
            until a task has observed it. The partition covers [start, end).
        end_confirmed_in_epoch_ns: the low watermark at which the committed epoch began that
            observed the end; None until such an epoch is committed, and until then the end does
            not count: see scheduler.lineage.is_finished.
    """

    token: str
    start_timestamp_ns: int
    parents: frozenset[str] = frozenset()
    end_timestamp_ns: int | None = None
    end_confirmed_in_epoch_ns: int | None = None

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError("a partition needs a token")
        if self.token in self.parents:
            raise ValueError(f"partition {self.token!r} can't be its own parent")
        if self.end_timestamp_ns is None and self.end_confirmed_in_epoch_ns is not None:
            raise ValueError(f"partition {self.token!r} has a confirmed end, but no end")
        if self.end_timestamp_ns is not None and self.end_timestamp_ns < self.start_timestamp_ns:
            raise ValueError(f"partition {self.token!r} ends before it starts")


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt at an epoch: the records with start_ns < commit_timestamp <= end_ns.

    A replayed epoch is a new plan of the same cut; finished parents and claims belong to a plan.

    Attributes:
        plan_id: a name of its own for each attempt.
        pipeline: the pipeline's name.
        start_ns, end_ns: the cut.
        generation: of the lease under which it was planned: see state.lease. None where the
            pipeline has no owner, as in a notebook; then nothing is fenced off.
        must_match_plan: an earlier plan of the same cut that was read to its end, None where there
            is none. Its epoch may have been written, so this plan has to observe the same ends.
    """

    plan_id: str
    pipeline: str
    start_ns: int
    end_ns: int
    generation: int | None = None
    must_match_plan: str | None = None

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError(f"plan {self.plan_id} ends at {self.end_ns}, before {self.start_ns}")


@dataclass(frozen=True, slots=True)
class ScanPart:
    """A part of an initial scan: one partition of a partitioned read of a table.

    Attributes:
        number: in the order in which the parts are read, from 0.
        chunk: the number of the parts that go into the output together.
        table: the table's full name.
        token: the partition token of Spanner's partitioned read.
        is_done: its rows are in the output.
    """

    number: int
    chunk: int
    table: str
    token: bytes
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Scan:
    """An initial scan: all rows as they stood at one time.

    Attributes:
        pipeline: the pipeline's name.
        at_ns: the low watermark at which the rows are read and after which the changes begin.
        session, transaction_id: in which the tokens of its parts count.
        tables: JSON of what the parts were cut of.
        records: the rows that are in the output.
        is_done: all rows are.
    """

    pipeline: str
    at_ns: int
    session: str
    transaction_id: bytes
    tables: str
    records: int = 0
    is_done: bool = False


class DesiredState(StrEnum):
    """What an operator wants of a pipeline; while it is not to run, no further epoch is chosen.

    RUNNING: epoch after epoch.
    PAUSED: none until it is wanted to run again, whatever is started or dies meanwhile.
    DRAINING: the running epoch is its owner's last.
    STOPPED: its owner ends at once, and the running epoch is left to be replayed.
    AWAITING_OPERATOR: it failed permanently, and runs again when it is resumed or its process is
        restarted.
    """

    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"
    AWAITING_OPERATOR = "mended"


class PipelineState(StrEnum):
    """What the owner of a pipeline does, under Datastream's names for a stream's states."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"
    FAILED = "failed"
    FAILED_PERMANENTLY = "failed permanently"
    NOT_RUNNING = "not running"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named pipeline and where it stands.

    Attributes:
        name: keys everything else in the store.
        source: the change stream, as projects/P/instances/I/databases/D/changeStreams/S.
        low_watermark_ns: the end of the last epoch that the sink committed; None before it.
        planned_watermark_ns: the end of the last epoch planned; None before the first.
        desired_state: what an operator wants of it.
        state: what its owner did last; None before the first.
        state_reason: why it failed and what to do about it; empty where it did not.
        state_since_ns: since when, by the owner's clock.
        owner: who runs it, as text for people; None while nobody does.
    """

    name: str
    source: str
    low_watermark_ns: int | None = None
    planned_watermark_ns: int | None = None
    desired_state: DesiredState = DesiredState.RUNNING
    state: PipelineState | None = None
    state_reason: str = ""
    state_since_ns: int | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that the sink committed: for those who watch, and for the next one's span.

    Attributes:
        pipeline: the pipeline's name.
        start_ns, end_ns: the cut (start_ns, end_ns]; end_ns is the epoch's low watermark.
        records: data change records in the epoch.
        transactions: transactions in the epoch.
        partitions: partitions alive or waiting at its end.
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
    late_records: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """Who owns a pipeline.

    Attributes:
        owner: who, as text for people; None while nobody does.
        generation: rises with every change of owner; what an owner of a former generation
            writes is refused.
        heartbeat: rises with every renewal; an owner whose heartbeat stands still is gone.
    """

    owner: str | None
    generation: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class PartialTransaction:
    """What one task saw of a transaction whose records lie in several partitions.

    Attributes:
        transaction: its server_transaction_id.
        records, partitions: how many of each the task read.
        records_stated, partitions_stated: how many Spanner says that there are in all.
    """

    transaction: str
    records: int
    partitions: int
    records_stated: int
    partitions_stated: int


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """What a plan's task handed on, counted by the task itself.

    Attributes:
        records: data change records, late ones among them.
        late_records: those at or before the epoch's start.
        partial_transactions: transactions of which it saw a part.
        violations: promises of the change stream that the records broke, each one sentence.
        partition_load: the partitions with records, by token, and how many each had.
    """

    records: int = 0
    late_records: int = 0
    partial_transactions: tuple[PartialTransaction, ...] = ()
    violations: tuple[str, ...] = ()
    partition_load: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class OpenQuery:
    """A partition query that has been running for a while, as its task last reported it.

    Attributes:
        token: the partition's.
        watermark_ns: the partition is complete through this time.
        open_ms: since the query was first opened.
        silent_ms: since its last message.
        stalls: how often it was cancelled and opened again because it was silent.
    """

    token: str
    watermark_ns: int
    open_ms: int
    silent_ms: int
    stalls: int


@dataclass(frozen=True, slots=True)
class Gap:
    """Records that are lost to a pipeline for good, accepted by its operator.

    Attributes:
        pipeline: the pipeline's name.
        start_ns, end_ns: low watermarks; what was committed in (start_ns, end_ns] is not read.
        accepted_at_ns: when, by the clock of the machine where it was accepted.
    """

    pipeline: str
    start_ns: int
    end_ns: int
    accepted_at_ns: int
