"""The comparison of an output with the truth, and the check that epochs are consistent cuts."""

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
    """The differences between output and truth; the lists are empty if they are equal.

    Attributes:
        equal: how many records are in both, once each.
        missing: records of the truth that the output lacks.
        unexpected: records of the output that the truth lacks.
        doubled: records that are in the output more than once.
    """

    equal: int
    missing: list[TruthRecord]
    unexpected: list[TruthRecord]
    doubled: list[TruthRecord]

    @property
    def is_equal(self) -> bool:
        """True if nothing differs."""
        return not (self.missing or self.unexpected or self.doubled)


def read_changelog(path: Path) -> pa.Table:
    """Read all epochs under a path with pyarrow, which did not write them."""
    return ds.dataset(path, format="parquet", partitioning="hive").to_table()


def compare(output: pa.Table, truth: list[TruthRecord]) -> Comparison:
    """Compare the output's records with the truth's, by identity and content."""
    in_output = Counter(_records(output))
    in_truth = Counter(truth)
    return Comparison(
        equal=sum(1 for record in in_truth if in_output[record] == 1),
        missing=sorted((in_truth - in_output).keys()),
        unexpected=sorted(in_output.keys() - in_truth.keys()),
        doubled=sorted(record for record, count in in_output.items() if count > 1),
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
            row["mod_type"],
        )
        for row in output.to_pylist()
    ]


def cut_violations(output: pa.Table) -> list[str]:
    """Return a text for each violation of consistent cuts; empty if all epochs are cuts.

    Each epoch holds the records after the previous low watermark, up to its own. Each transaction
    lies in one epoch, with as many records in as many partitions as Spanner states.
    """
    epochs: dict[Any, list[Any]] = defaultdict(list)
    transactions: dict[tuple[Any, str], list[Any]] = defaultdict(list)
    for row in output.to_pylist():
        epochs[row["low_watermark"]].append(row["commit_timestamp"])
        transactions[row["commit_timestamp"], row["server_transaction_id"]].append(row)
    violations = []
    previous = None
    for watermark, commits in sorted(epochs.items()):
        if max(commits) > watermark:
            violations.append(f"epoch {watermark} holds a record of {max(commits)}")
        if previous is not None and min(commits) <= previous:
            violations.append(
                f"epoch {watermark} holds {min(commits)}, before the previous {previous}"
            )
        previous = watermark
    for (_, transaction), rows in transactions.items():
        counted = (
            len({row["low_watermark"] for row in rows}),
            len(rows),
            len({row["partition_token"] for row in rows}),
        )
        stated = (
            1,
            rows[0]["number_of_records_in_transaction"],
            rows[0]["number_of_partitions_in_transaction"],
        )
        if counted != stated:
            violations.append(
                f"transaction {transaction} is incomplete: {counted} instead of {stated}"
            )
    return violations


def freshness_seconds(path: Path, *, committed_from: float = 0) -> list[float]:
    """Return the seconds from each record's commit until its epoch was readable, sorted.

    An epoch becomes readable by a rename, which the directory's change time shows. This is correct
    if the emulator and the file system use the same clock.

    Args:
        path: the output.
        committed_from: leave out records committed before this Unix time.
    """
    seconds = []
    for epoch in sorted(path.glob("epoch=*")):
        readable = epoch.stat().st_ctime
        table = ds.dataset(epoch, format="parquet").to_table(columns=["commit_timestamp"])
        commits = (commit.timestamp() for commit in table.column(0).to_pylist())
        seconds += [readable - commit for commit in commits if commit >= committed_from]
    return sorted(seconds)
