"""Holds the Parquet output against the truth and against the epochs' own promise."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import UTC
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from slackwater.testing.plain_client import TruthRecord, canonical


@dataclass(frozen=True, slots=True)
class Comparison:
    """What differs; all empty where output and truth are equal.

    Attributes:
        equal: records that stand in both, once each.
        missing: records of the truth that the output lacks.
        unexpected: records of the output that the truth lacks.
        doubled: records that stand in the output more than once.
    """

    equal: int
    missing: list[TruthRecord]
    unexpected: list[TruthRecord]
    doubled: list[TruthRecord]

    @property
    def is_equal(self) -> bool:
        """True where nothing differs."""
        return not (self.missing or self.unexpected or self.doubled)


def read_changelog(path: Path) -> pa.Table:
    """All epochs under a path, with pyarrow, which did not write them."""
    return ds.dataset(path, format="parquet", partitioning="hive").to_table()


def compare(output: pa.Table, truth: list[TruthRecord]) -> Comparison:
    """The output's records against the truth's, by everything that identifies and fills them."""
    ours = Counter(_records(output))
    theirs = Counter(truth)
    return Comparison(
        equal=sum(1 for record in theirs if ours[record] == 1),
        missing=sorted((theirs - ours).keys()),
        unexpected=sorted(ours.keys() - theirs.keys()),
        doubled=sorted(record for record, count in ours.items() if count > 1),
    )


def _records(output: pa.Table) -> list[TruthRecord]:
    return [
        TruthRecord(
            f"{row['commit_timestamp'].astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
            row["server_transaction_id"],
            row["record_sequence"],
            row["table_name"],
            tuple(
                (
                    canonical(mod["keys"]),
                    canonical(mod["new_values"]),
                    canonical(mod["old_values"]),
                )
                for mod in row["mods"]
            ),
        )
        for row in output.to_pylist()
    ]


def cut_violations(output: pa.Table) -> list[str]:
    """Where an epoch is no consistent cut; empty where all are.

    Each epoch holds the records after the former low watermark, up to its own; each transaction
    lies in one epoch, with as many records over as many partitions as Spanner states.
    """
    epochs: dict[Any, list[Any]] = defaultdict(list)
    transactions: dict[tuple[Any, str], list[Any]] = defaultdict(list)
    for row in output.to_pylist():
        epochs[row["low_watermark"]].append(row["commit_timestamp"])
        transactions[row["commit_timestamp"], row["server_transaction_id"]].append(row)
    broken = []
    former = None
    for watermark, commits in sorted(epochs.items()):
        if max(commits) > watermark:
            broken.append(f"epoch {watermark} holds a record of {max(commits)}")
        if former is not None and min(commits) <= former:
            broken.append(f"epoch {watermark} holds {min(commits)}, before the former {former}")
        former = watermark
    for (_, transaction), rows in transactions.items():
        found = (
            len({row["low_watermark"] for row in rows}),
            len(rows),
            len({row["partition_token"] for row in rows}),
        )
        stated = (
            1,
            rows[0]["number_of_records_in_transaction"],
            rows[0]["number_of_partitions_in_transaction"],
        )
        if found != stated:
            broken.append(f"transaction {transaction} is torn: {found} instead of {stated}")
    return broken


def freshness_seconds(path: Path, *, committed_from: float = 0) -> list[float]:
    """For each record, the seconds from its commit until its epoch was readable, sorted.

    Args:
        path: the output.
        committed_from: leave out what was committed before this Unix time.

    An epoch becomes readable by a rename, which the directory's change time shows; it holds where
    the emulator's clock and the file system's are one.
    """
    seconds = []
    for epoch in sorted(path.glob("epoch=*")):
        readable = epoch.stat().st_ctime
        table = ds.dataset(epoch, format="parquet").to_table(columns=["commit_timestamp"])
        commits = (stamp.timestamp() for stamp in table.column(0).to_pylist())
        seconds += [readable - commit for commit in commits if commit >= committed_from]
    return sorted(seconds)
