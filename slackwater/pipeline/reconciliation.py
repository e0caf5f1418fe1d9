"""The agreement of checkpoint, metadata store and output, each of which can be restored or lost.

A pipeline's position is one low watermark, stored in three places: in Spark's checkpoint, in the
metadata store, and in the output. In normal operation an epoch is planned in the checkpoint, then
in the store, becomes visible in the output, and is then committed in the checkpoint and in the
store. A crash leaves them one step apart at most. They are further apart when one of them was
restored from a backup, failed over to a replica that was behind, or was removed.

The output decides: epochs that it has must not be written again, and others must be. A store that
is behind is set right when the next epoch is planned, because Spanner knows the partitions at any
low watermark. Everything else is refused, with the command that goes on where the output ends.

The rules only; slackwater.pipeline.resume_point reads the positions.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from slackwater.timestamp import format_rfc3339


@dataclass(frozen=True, slots=True)
class CheckpointPosition:
    """The position of Spark's checkpoint, as low watermarks in nanoseconds.

    Attributes:
        planned_ns: the end of the last epoch planned.
        committed_ns: the end of the last epoch committed; None before the first.
        is_whole: False if Spark can't go on from it: it was copied while it was written, or a power
            cut has left files empty.
    """

    planned_ns: int
    committed_ns: int | None
    is_whole: bool = True


@dataclass(frozen=True, slots=True)
class StorePosition:
    """The position of the metadata store, as low watermarks in nanoseconds.

    Attributes:
        committed_ns: of the last epoch committed; None before the first.
        scan_ns: of the initial scan, done or not; None without one.
        is_scan_done: True if all of the scan is in the output.
        scanned: how many rows of the scan are in the output.
        plan_start_ns, plan_end_ns: of the last epoch planned; None before the first.
    """

    committed_ns: int | None = None
    scan_ns: int | None = None
    is_scan_done: bool = False
    scanned: int = 0
    plan_start_ns: int | None = None
    plan_end_ns: int | None = None


@dataclass(frozen=True, slots=True)
class OutputNs:
    """The position of the output, as low watermarks in nanoseconds; see OutputPosition.

    Attributes:
        complete_ns: everything through this one is visible; None if nothing is.
        begun_ns: of an epoch that is visible in some tables only; None without one.
        pipeline: the pipeline that wrote it; None if it does not say.
        has_rows: True if there is anything in it; None if that can't be told, or does not matter
            because no initial scan is to begin or to go on.
        committed_ns: of the last commit, which an epoch without rows does not have.
    """

    complete_ns: int | None = None
    begun_ns: int | None = None
    pipeline: str | None = None
    has_rows: bool | None = None
    committed_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of a pipeline's three durable parts.

    Attributes:
        checkpoint: None if it is empty or missing.
        store: the metadata store's; empty if it is new.
        output: None if the destination can't tell, as Kafka.
    """

    checkpoint: CheckpointPosition | None
    store: StorePosition
    output: OutputNs | None


class Verdict(Enum):
    """A verdict on the positions of a pipeline's parts."""

    NEW = "nothing has begun"
    GO_ON = "the parts agree"
    FIND_PARTITIONS = "the metadata store is behind: its partitions are read from Spanner"
    CHECKPOINT_MISSING = "epochs were committed, and the checkpoint is empty"
    CHECKPOINT_TORN = "a file of the checkpoint's last epochs is missing or empty"
    CHECKPOINT_BEHIND = "the output has epochs that the checkpoint does not have"
    STORE_AHEAD = "the metadata store has epochs that the checkpoint does not have"
    OUTPUT_BEHIND = "the output lacks epochs that were committed"
    OUTPUT_EMPTY = "epochs were committed, and the output is empty"
    SCAN_UNKNOWN = "the output has rows, and its initial scan has not begun"
    SCAN_LOST = "the output lacks rows that the initial scan has written"
    OUTPUT_FOREIGN = "the output is another pipeline's"

    @property
    def is_checkpoints_fault(self) -> bool:
        """Whether the checkpoint alone is out of step, or not usable."""
        return self in (
            Verdict.CHECKPOINT_MISSING,
            Verdict.CHECKPOINT_TORN,
            Verdict.CHECKPOINT_BEHIND,
        )

    @property
    def is_refused(self) -> bool:
        """Whether an operator has to decide."""
        return self not in (Verdict.NEW, Verdict.GO_ON, Verdict.FIND_PARTITIONS)


def reconcile(pipeline: str, positions: Positions) -> Verdict:
    """Return the verdict on the positions of a pipeline's parts.

    The next epoch starts where the checkpoint says: at its last committed epoch if another one is
    planned, which is then replayed, else at its last planned one.
    """
    checkpoint, store, output = positions.checkpoint, positions.store, positions.output
    if output is not None and output.pipeline not in (None, pipeline):
        return Verdict.OUTPUT_FOREIGN
    if checkpoint is None:
        return _without_checkpoint(store, output)
    if not checkpoint.is_whole:
        return Verdict.CHECKPOINT_TORN
    planned_ns, committed_ns = checkpoint.planned_ns, checkpoint.committed_ns
    if output is not None:
        verdict = _against_output(checkpoint, store, output)
        if verdict is not Verdict.GO_ON:
            return verdict
        if _lacks_scan(store, output):
            return Verdict.SCAN_LOST
    if store.committed_ns is None:
        return Verdict.GO_ON if committed_ns is None else Verdict.FIND_PARTITIONS
    if store.committed_ns not in (committed_ns, planned_ns) and (
        committed_ns is None or store.committed_ns > committed_ns
    ):
        return Verdict.STORE_AHEAD
    if committed_ns is not None and store.committed_ns < committed_ns:
        # Often only by the last epoch, whose tasks' facts it has: the planner looks.
        return Verdict.FIND_PARTITIONS
    return Verdict.GO_ON


def _without_checkpoint(store: StorePosition, output: OutputNs | None) -> Verdict:
    complete_ns, begun_ns = (output.complete_ns, output.begun_ns) if output else (None, None)
    # A finished initial scan is a low watermark, too, and the changes after it are still to come.
    if any(ns not in (None, store.scan_ns) for ns in (store.committed_ns, complete_ns, begun_ns)):
        return Verdict.CHECKPOINT_MISSING
    if output is not None and output.has_rows and store.scan_ns is None:
        return Verdict.SCAN_UNKNOWN
    if output is not None and _lacks_scan(store, output):
        return Verdict.SCAN_LOST
    return Verdict.NEW


def _lacks_scan(store: StorePosition, output: OutputNs) -> bool:
    """Return True if rows of the initial scan were written that the output does not have."""
    if store.committed_ns not in (None, store.scan_ns):
        # Epochs were committed after it: without a line, an operator has accepted an empty output.
        return False
    if store.is_scan_done:
        return output.complete_ns is None
    return store.scanned > 0 and output.has_rows is False


def _against_output(
    checkpoint: CheckpointPosition, store: StorePosition, output: OutputNs
) -> Verdict:
    planned_ns, committed_ns = checkpoint.planned_ns, checkpoint.committed_ns
    complete_ns = output.complete_ns
    if committed_ns is not None:
        if complete_ns is None:
            return Verdict.OUTPUT_EMPTY
        if complete_ns < committed_ns:
            return Verdict.OUTPUT_BEHIND
    elif complete_ns is None or complete_ns == store.scan_ns:
        complete_ns = None
    if complete_ns not in (committed_ns, planned_ns):
        return Verdict.CHECKPOINT_BEHIND
    if output.begun_ns is not None and complete_ns != planned_ns != output.begun_ns:
        return Verdict.CHECKPOINT_BEHIND
    return Verdict.GO_ON


def remakes_checkpoint(positions: Positions, verdict: Verdict, *, is_expendable: bool) -> bool:
    """Return whether a new checkpoint is made without being asked, after the output's last epoch.

    An operator would be told to do the same. An output without a position was emptied: then only an
    operator can decide.

    Args:
        positions: of the parts.
        verdict: of reconcile().
        is_expendable: the checkpoint is on this machine only, and the settings do not name it.
    """
    has_end = positions.output is not None and positions.output.complete_ns is not None
    return is_expendable and verdict.is_checkpoints_fault and has_end


def begun_epoch_ns(positions: Positions, start_ns: int | None) -> int | None:
    """Return where the next epoch has to end, if some process may have written a part of it.

    Such an epoch is in some of the output's tables already, or the store has its plan: then a
    former owner that only froze may still make it visible. With another end, the records of both
    epochs would be in the output.

    Args:
        positions: of the parts.
        start_ns: the low watermark at which the next epoch starts that is planned; None if it is
            not decided yet. A planned one of the checkpoint ends as it says.
    """
    output, store = positions.output, positions.store
    begun = [
        output.begun_ns if output else None,
        store.plan_end_ns if store.plan_start_ns == start_ns else None,
    ]
    return max(
        (ns for ns in begun if ns is not None and start_ns is not None and ns > start_ns),
        default=None,
    )


def skip_from_ns(positions: Positions) -> int | None:
    """Return the low watermark after which an operator may have records skipped.

    The first epoch of a checkpoint has no records: those after it can be skipped before it is
    committed. None if nothing is planned.
    """
    checkpoint = positions.checkpoint
    if checkpoint is None:
        return None
    return checkpoint.planned_ns if checkpoint.committed_ns is None else checkpoint.committed_ns


def last_ns(positions: Positions) -> int | None:
    """Return the low watermark of the last epoch committed; None if no part has one.

    The output knows best. If it can't tell, or was emptied, it is the later one of the others: a
    pipeline that died between writing an epoch and recording it may have one more.
    """
    if positions.output is not None and positions.output.complete_ns is not None:
        return positions.output.complete_ns
    checkpoint = positions.checkpoint
    committed = (checkpoint.committed_ns if checkpoint else None, positions.store.committed_ns)
    return max((ns for ns in committed if ns is not None), default=None)


def refusal(pipeline: str, positions: Positions, verdict: Verdict, command: str) -> tuple[str, str]:
    """Return the problem of a refused verdict, and what to do.

    Args:
        pipeline: its name.
        positions: of its parts.
        verdict: of reconcile().
        command: the command line as far as the settings.
    """
    message = f"the parts of pipeline {pipeline!r} do not agree: {verdict.value}."
    if verdict is Verdict.OUTPUT_FOREIGN:
        other = positions.output.pipeline if positions.output else None
        return (
            f"{message} It is that of {other!r}.",
            "Give each pipeline an output and a name of its own",
        )
    last = f"`{command} --from-watermark last`"
    return f"{message} {_ends(positions)}", _REMEDIES[verdict].format(last=last)


_REMEDIES: Final = {
    Verdict.CHECKPOINT_MISSING: "Restore the checkpoint, or continue with a new one: {last}",
    Verdict.CHECKPOINT_TORN: (
        "It was copied while it was written, or the power failed. {last} puts it aside and goes on"
        " after the output's last epoch"
    ),
    Verdict.CHECKPOINT_BEHIND: (
        "{last} puts the checkpoint aside and goes on after the output's last epoch"
    ),
    Verdict.STORE_AHEAD: (
        "{last} puts the checkpoint aside and goes on after the output's last epoch, or the"
        " store's if the output can't tell"
    ),
    Verdict.OUTPUT_BEHIND: (
        "If the output was restored, {last} puts the checkpoint aside and reads again what it lacks"
    ),
    Verdict.OUTPUT_EMPTY: (
        "If it was emptied or replaced on purpose, {last} puts the checkpoint aside and goes on"
        " after the last epoch. To have all of it again, take another pipeline name and checkpoint"
    ),
    Verdict.SCAN_UNKNOWN: (
        "Empty the output, or give the pipeline another one: it would scan all tables again"
    ),
    Verdict.SCAN_LOST: (
        "Restore the output; or give the pipeline another name and checkpoint, to scan all tables"
        " again"
    ),
}


def _ends(positions: Positions) -> str:
    """Return the ends of the parts, as a sentence."""
    checkpoint, output = positions.checkpoint, positions.output
    ends = {
        "the checkpoint": checkpoint.committed_ns if checkpoint else None,
        "the metadata store": positions.store.committed_ns,
    }
    if output is not None:
        ends["the output"] = output.complete_ns
    texts = (
        f"{part} {'has no epoch' if ns is None else f'ends at {format_rfc3339(ns)}'}"
        for part, ns in ends.items()
    )
    sentence = ", ".join(texts)
    return f"{sentence[0].upper()}{sentence[1:]}."
