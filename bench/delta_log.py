"""What a small merge into a Delta mirror takes, by the number of commits in the table's log.

python -m bench.delta_log [--commits 100 1000 3600 86400]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from slackwater.spark_sink.sql.columns import Column
from slackwater.spark_sink.tables.direct_table import DirectTable
from slackwater.spark_sink.tables.row_merges.delta_merge import merge_rows
from slackwater.spark_sink.tables.row_merges.row_changes import RowChange
from slackwater.spark_sink.tables.row_merges.small_epoch import latest_rows
from slackwater.spark_sink.tables.table_format import MergeId, OtherRows

_COLUMNS: Final = (Column("Id", "INT64", is_key=True), Column("Name", "STRING", is_key=False))
_MERGES: Final = 21
_START: Final = datetime(2026, 1, 31, 9, tzinfo=UTC)


def _make_table(folder: Path, commits: int) -> None:
    """Make a table of fifty rows whose log has so many commits and a checkpoint."""
    rows = {"Id": list(range(50)), "Name": ["a"] * 50}
    write_deltalake(folder, pa.table(rows))
    info = json.dumps({"commitInfo": {"timestamp": 1, "operation": "MERGE"}})
    for version in range(1, commits):
        (folder / "_delta_log" / f"{version:020d}.json").write_text(f"{info}\n")
    DeltaTable(folder).create_checkpoint()


def measure(commits: int) -> tuple[float, float]:
    """Return the median milliseconds of a merge of one row: of the clock, and of CPU."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "T")
        _make_table(folder, commits)
        spent = []
        for number in range(_MERGES):
            values = {"Name": f"n{number}"}
            change = RowChange(False, True, values, _START)
            rows = latest_rows({'{"Id":"1"}': change}, _COLUMNS)
            merge_id = MergeId("bench", _START + timedelta(seconds=number))
            begun = time.perf_counter(), time.process_time()
            merge_rows(
                DirectTable(str(folder)), rows, _COLUMNS, merge_id, OtherRows(are_kept=False)
            )
            spent.append((time.perf_counter() - begun[0], time.process_time() - begun[1]))
    clock, cpu = zip(*spent, strict=True)
    return statistics.median(clock) * 1e3, statistics.median(cpu) * 1e3


def main() -> None:
    """Print a line for each number of commits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commits", type=int, nargs="+", default=[100, 1_000, 3_600, 86_400])
    for commits in parser.parse_args().commits:
        clock_ms, cpu_ms = measure(commits)
        print(f"{commits} commits: {clock_ms:.0f} ms a merge ({cpu_ms:.0f} ms of CPU)", flush=True)


if __name__ == "__main__":
    main()
