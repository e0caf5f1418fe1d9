"""The records of the metadata store, as frozen dataclasses that do not need a database.

Lineage facts (a partition exists, has these parents, ended at this time) are facts about the
change stream. They are only ever added, and adding one twice changes nothing, so a task may run
twice.

All times are whole nanoseconds since the Unix epoch, UTC.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class PartitionKey(NamedTuple):
    """The identity of a partition in its change stream.

    Attributes:
        function: the placement whose read function returns the partition; empty for the change
            stream's own function. Functions may have partitions with the same token.
        token: the partition token.
    """

    function: str
    token: str


@dataclass(frozen=True, slots=True)
class Partition:
    """A change stream partition and its lineage so far.

    Attributes:
        token: the partition token, as Spanner returned it.
        start_timestamp_ns: the start_timestamp of the record that announced it; the partition holds
            records from this time on, inclusive.
        parents: the parent partition tokens; empty for a partition that a query with a NULL
            partition token announced, and always empty with mutable key ranges.
        end_timestamp_ns: the partition's end; None until a task has observed it. With mutable key
            ranges it is the partition's last timestamp, otherwise the start_timestamp of its
            children, and the partition covers [start, end).
        end_confirmed_in_epoch_ns: the start of the committed epoch that observed the end; None
            until such an epoch is committed. Until then the end does not count, as
            scheduler.lineage.is_finished decides.
        start_confirmed_in_epoch_ns: the start of the committed epoch that has read the partition
            from its start on; None until such an epoch is committed.
        function: as in PartitionKey.
    """

    token: str
    start_timestamp_ns: int
    parents: frozenset[str] = frozenset()
    end_timestamp_ns: int | None = None
    end_confirmed_in_epoch_ns: int | None = None
    start_confirmed_in_epoch_ns: int | None = None
    function: str = ""

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError("a partition needs a token")
        if self.token in self.parents:
            raise ValueError(f"partition {self.token!r} can't be its own parent")
        if self.end_timestamp_ns is None and self.end_confirmed_in_epoch_ns is not None:
            raise ValueError(f"partition {self.token!r} has a confirmed end, but no end")
        if self.end_timestamp_ns is not None and self.end_timestamp_ns < self.start_timestamp_ns:
            raise ValueError(f"partition {self.token!r} ends before it starts")

    @property
    def key(self) -> PartitionKey:
        """The partition's key in its pipeline."""
        return PartitionKey(self.function, self.token)

    @property
    def parent_keys(self) -> frozenset[PartitionKey]:
        """The keys of its parents, which are partitions of the same function."""
        if not self.parents:
            return frozenset()
        return frozenset(PartitionKey(self.function, parent) for parent in self.parents)

    @property
    def label(self) -> str:
        """The partition's name among those of its pipeline, as a single text."""
        return partition_label(self.key)


def partition_label(key: PartitionKey) -> str:
    """Return the text that stands for a partition."""
    return f"{key.function}:{key.token}" if key.function else key.token


@dataclass(frozen=True, slots=True)
class Plan:
    """One attempt at an epoch: the records with start_ns < commit_timestamp <= end_ns.

    A replayed epoch is a new plan of the same cut; finished parents and claims belong to a plan.

    Attributes:
        plan_id: a unique id; each attempt has its own.
        pipeline: the pipeline's name.
        start_ns, end_ns: the cut.
        generation: the generation of the lease under which it was planned, as in state.lease. None
            if the pipeline has no owner, as in a notebook; then no write is refused.
        must_match_plan: the id of an earlier plan of the same cut that was read to its end; None if
            there is none. Its epoch may have been written, so this plan has to observe the same
            ends.
        follows_failed_audit: True if an earlier attempt at the cut has failed the audit. Spanner
            may answer the same queries in the same way, so this plan uses other queries: it is read
            with the proof that allows no late records.
    """

    plan_id: str
    pipeline: str
    start_ns: int
    end_ns: int
    generation: int | None = None
    must_match_plan: str | None = None
    follows_failed_audit: bool = False

    def __post_init__(self) -> None:
        if self.end_ns < self.start_ns:
            raise ValueError(f"plan {self.plan_id} ends at {self.end_ns}, before {self.start_ns}")


@dataclass(frozen=True, slots=True)
class ScanPart:
    """A part of an initial scan: one partition of a partitioned read of a table.

    Attributes:
        number: its place in the order in which the parts are read, from 0.
        chunk: the number of its chunk; the parts of a chunk go into the output together.
        table: the table's full name.
        token: the partition token of Spanner's partitioned read.
        is_done: True if its rows are in the output.
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
        session, transaction_id: Spanner's session and transaction, in which the tokens of its parts
            are valid.
        tables: JSON of the tables that were divided into the parts.
        records: the number of rows that are in the output.
        is_done: True if all rows are in the output.
    """

    pipeline: str
    at_ns: int
    session: str
    transaction_id: bytes
    tables: str
    records: int = 0
    is_done: bool = False


class DesiredState(StrEnum):
    """The state in which an operator wants a pipeline; no epoch begins unless it is RUNNING.

    RUNNING: epoch after epoch.
    PAUSED: no epoch until an operator resumes it, even if processes start or die meanwhile.
    DRAINING: the running epoch is its owner's last.
    STOPPED: its owner ends at once, and the running epoch is left to be replayed.
    AWAITING_OPERATOR: it failed permanently, and runs again when it is resumed or its process is
        restarted.
    """

    RUNNING = "running"
    PAUSED = "paused"
    DRAINING = "draining"
    STOPPED = "stopped"
    AWAITING_OPERATOR = "awaits operator"


class PipelineState(StrEnum):
    """The state of a pipeline, as its owner reports it; the names are those of Datastream."""

    STARTING = "starting"
    RUNNING = "running"
    DRAINING = "draining"
    PAUSED = "paused"
    FAILED = "failed"
    FAILED_PERMANENTLY = "failed permanently"
    NOT_RUNNING = "not running"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A named pipeline, its progress and its state.

    Attributes:
        name: the key of everything else in the store.
        source: the change stream, as projects/P/instances/I/databases/D/changeStreams/S.
        low_watermark_ns: the end of the last epoch that the sink committed; None before the first.
        planned_watermark_ns: the end of the last epoch planned; None before the first.
        desired_state: the state in which an operator wants it.
        state: the last state that its owner reported; None before the first report.
        state_reason: why it failed and what to do about it; empty if it did not fail.
        state_since_ns: when the state began, by the owner's clock.
        owner: the process that runs it, as text for people; None if no process does.
        partition_mode: the partition mode of the change stream of which its partitions are; None if
            it has none.
        starts_since_ns: the time up to which the announcement of a partition without parents says
            nothing new, as scheduler.lineage.starts_since_ns decides; None if it has no partitions.
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
    partition_mode: str | None = None
    starts_since_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch that the sink committed; used by monitoring, and to choose the next epoch's span.

    Attributes:
        pipeline: the pipeline's name.
        start_ns, end_ns: the cut (start_ns, end_ns]; end_ns is the epoch's low watermark.
        records: the number of data change records in the epoch.
        transactions: the number of transactions in the epoch.
        partitions: the number of partitions alive or waiting at its end.
        committed_at_ns: when the sink had committed it, by the driver's clock.
        seconds: the time from planning to commit.
        late_records: the number of records at or before the epoch's start.
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
    """The ownership of a pipeline.

    Attributes:
        owner: the process that owns it, as text for people; None if no process does.
        generation: rises with every change of owner; writes under an earlier generation are
            refused.
        heartbeat: rises with every renewal; an owner whose heartbeat stops rising is gone.
    """

    owner: str | None
    generation: int
    heartbeat: int


@dataclass(frozen=True, slots=True)
class PartialTransaction:
    """One task's part of a transaction whose records lie in several partitions.

    Attributes:
        transaction: the server_transaction_id.
        records, partitions: how many of each the task read.
        records_stated, partitions_stated: how many of each Spanner states in all.
    """

    transaction: str
    records: int
    partitions: int
    records_stated: int
    partitions_stated: int


@dataclass(frozen=True, slots=True)
class MoveCounts:
    """The moves of keys at the commit timestamps of one second, as partition event records say.

    Each move is in one record as a move-out and in another as a move-in. So over all partitions
    moves_out and moves_in are equal, and the digest is 0.

    Attributes:
        second_ns: the start of the second.
        moves_out, moves_in: the number of either.
        digest: the sum of the moves-out's hashes minus that of the moves-in's, modulo 2**63.
    """

    second_ns: int
    moves_out: int
    moves_in: int
    digest: int


@dataclass(frozen=True, slots=True)
class TaskCounts:
    """A task's own counts of the records that it delivered.

    Attributes:
        records: the number of data change records, including late ones.
        late_records: the number of those at or before the epoch's start.
        partial_transactions: the transactions of which it read only a part.
        violations: promises of the change stream that the records broke, a sentence each.
        partition_load: pairs of a partition's label and its number of records, without zeros.
        moves: the moves of keys that its partitions' records show, without seconds that add up.
    """

    records: int = 0
    late_records: int = 0
    partial_transactions: tuple[PartialTransaction, ...] = ()
    violations: tuple[str, ...] = ()
    partition_load: tuple[tuple[str, int], ...] = ()
    moves: tuple[MoveCounts, ...] = ()


@dataclass(frozen=True, slots=True)
class OpenQuery:
    """A partition query that has been running for a while, as its task last reported it.

    Attributes:
        token: the partition's label.
        watermark_ns: the time through which the partition is complete.
        open_ms: the time since the query was first opened.
        silent_ms: the time since its last message.
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
