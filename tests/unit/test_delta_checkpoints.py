"""Checkpoints of a Delta table's log that delta-rs writes on a local disk: real files, no Spark."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from slackwater.spark_sink.output.delta_checkpoints import Checkpoints, clean_up

_BROKEN_OFF = """
import resource, sys
from slackwater.spark_sink.output.delta_checkpoints import Checkpoints
resource.setrlimit(resource.RLIMIT_FSIZE, (4_096, 4_096))
checkpoints = Checkpoints()
checkpoints.begin(sys.argv[1], 1)
checkpoints.wait()
print(checkpoints.are_written(sys.argv[1]))
"""


def table_of(folder: Path, commits: int) -> Path:
    """Make a table of so many commits, and return its log's folder."""
    for number in range(commits):
        write_deltalake(folder, pa.table({"number": [number]}), mode="append")
    return folder / "_delta_log"


def test_a_checkpoint_that_is_broken_off_is_not_there(tmp_path: Path) -> None:
    log = table_of(tmp_path, 2)
    # As on a full disk, its writer gets no further than half of it.
    done = subprocess.run(
        [sys.executable, "-c", _BROKEN_OFF, str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout == "False\n", done.stderr
    assert "Spark writes the checkpoints" in done.stderr
    assert not list(log.glob("*.parquet"))
    # What a process that is killed leaves is no file of the log.
    (log / f"{1:020d}.checkpoint.parquet#1").write_bytes(b"PAR1")
    checkpoints = Checkpoints()
    checkpoints.begin(str(tmp_path), 1)
    checkpoints.wait()
    assert checkpoints.are_written(str(tmp_path))
    assert pq.read_metadata(log / f"{1:020d}.checkpoint.parquet").num_rows >= 2
    assert sorted(DeltaTable(tmp_path).to_pyarrow_table().column("number").to_pylist()) == [0, 1]


def test_old_commits_go_with_their_checksums_and_the_table_stays(tmp_path: Path) -> None:
    log = table_of(tmp_path, 10)
    long_ago = time.time() - 31 * 86_400
    for version in range(8):
        os.utime(log / f"{version:020d}.json", (long_ago, long_ago))
        # Hadoop's, and Spark's with Hadoop's.
        for name in (
            f".{version:020d}.json.crc",
            f"{version:020d}.crc",
            f".{version:020d}.crc.crc",
        ):
            (log / name).touch()
    checkpoints = Checkpoints()
    DeltaTable(tmp_path, version=6).create_checkpoint()
    os.utime(log / f"{6:020d}.checkpoint.parquet", (long_ago, long_ago))
    checkpoints.begin(str(tmp_path), 9)
    checkpoints.wait()
    versions = {int(path.name.lstrip(".")[:20]) for path in log.iterdir() if "0" in path.name}
    assert versions == {6, 7, 8, 9}
    assert len([path for path in log.iterdir() if path.suffix == ".crc"]) == 6
    numbers = DeltaTable(tmp_path).to_pyarrow_table().column("number").to_pylist()
    assert sorted(numbers) == list(range(10))


def test_a_table_that_keeps_its_log_keeps_it(tmp_path: Path) -> None:
    log = table_of(tmp_path, 3)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.enableExpiredLogCleanup": "false"})
    for path in log.iterdir():
        os.utime(path, (1, 1))
    table = DeltaTable(tmp_path)
    table.create_checkpoint()
    clean_up(table, str(tmp_path))
    assert len(list(log.glob("*.json"))) == 4
