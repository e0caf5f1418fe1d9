"""The initial scan: rows per CPU second, compared with a plain client that only reads them.

A synthetic server has the table, which `slackwater run` with source.initial_scan only reads into
durable Parquet; all processes of the service are counted, the start of Spark among them. Because a
start takes as long as hundreds of thousands of rows, a small scan is run before, and what is beyond
it is told as well. Then the plain client reads the same table row by row. Each row has to land
once, also if the service is killed and started again every so often.

    python -m bench.scan [--rows 1000000] [--kill-every SECONDS] [--json FILE]
"""

import argparse
import math
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from bench.figures import tell
from bench.landing import Watched
from bench.service import service_settings, synthetic_stream
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator_database import database_of
from tests.synthetic.script import Script, ScriptedPartition
from tests.synthetic.server import synthetic_process
from tests.synthetic.table import COLUMNS, FIRST_ID, NAME, SyntheticTable

_SMALL: Final = 5_000
_ROWS_A_PART: Final = 100_000
_SECONDS_MAX: Final = 3_600


def measure(rows: int, kill_every_s: float = _SECONDS_MAX) -> dict[str, Any]:
    """Scan and read the table, and return the figures of both."""
    scripts = {
        name: Script(
            Dialect.GOOGLE_STANDARD_SQL,
            (ScriptedPartition("p", 0),),
            table=SyntheticTable(count, math.ceil(count / _ROWS_A_PART)),
        )
        for name, count in (("small", _SMALL), ("whole", rows))
    }
    with synthetic_process(scripts) as host, tempfile.TemporaryDirectory() as name:
        small, whole = (replace(synthetic_stream(host), database=its) for its in scripts)
        folder, os.environ["SPANNER_EMULATOR_HOST"] = Path(name), host
        start = _scan(small, folder / "small", _SMALL)
        scanned = _scan(whole, folder / "whole", rows, kill_every_s)
        if scanned["kills"]:
            return {"rows": rows, **scanned}
        began, cpu = time.monotonic(), time.process_time()
        read = _read(whole)
        assert read == rows
        spent, seconds = time.process_time() - cpu, time.monotonic() - began
    cpu_s = [made["python_cpu_seconds"] + made["java_cpu_seconds"] for made in (start, scanned)]
    return {
        "rows": rows,
        **scanned,
        "rows_per_cpu_second_beyond_the_start": round((rows - _SMALL) / (cpu_s[1] - cpu_s[0])),
        "client_rows_per_second": round(rows / seconds),
        "client_rows_per_cpu_second": round(rows / spent),
        "ratio_to_client": round(scanned["rows_per_cpu_second"] * spent / rows, 2),
    }


def _scan(
    stream: ChangeStream, folder: Path, rows: int, kill_every_s: float = _SECONDS_MAX
) -> dict[str, Any]:
    pipeline_settings = service_settings(folder, stream, 0)
    pipeline_settings["source"] |= {"initial_scan": "only", "start": "now"}
    service = Service(pipeline_settings, folder, os.environ)
    python = java = 0.0
    code, kills, worker_bytes, began = None, -1, 0, time.monotonic()
    while code is None:
        kills += 1
        service.start()
        watched = Watched(service.pid)
        watched.start()
        with suppress(subprocess.TimeoutExpired):
            code = service.wait(kill_every_s)
        python, java = (sum(two) for two in zip((python, java), watched.look(), strict=True))
        worker_bytes = max(worker_bytes, watched.worker_bytes_max)
        service.kill()
    seconds = time.monotonic() - began
    landed = _landed(folder / "changes", rows)
    if code or landed.min() != 1 or landed.max() != 1:
        raise SystemExit(f"exit code {code}, rows land {landed.min()} to {landed.max()} times")
    return {
        "kills": kills,
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "rows_per_cpu_second": round(rows / (python + java)),
        "python_cpu_seconds": round(python, 1),
        "java_cpu_seconds": round(java, 1),
        "python_worker_mib_max": round(worker_bytes / 2**20),
    }


def _landed(path: Path, rows: int) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Return how often each row is in the files."""
    counts = np.zeros(rows, np.int64)
    for batch in ds.dataset(path, format="parquet").to_batches(columns=["mods"]):
        keys = pc.struct_field(pc.list_flatten(batch["mods"]), "keys")
        numbers = pc.cast(pc.replace_substring_regex(keys, r"\D", ""), pa.int64())
        counts += np.bincount(numbers.to_numpy() - FIRST_ID, minlength=rows)
    return counts


def _read(stream: ChangeStream) -> int:
    with database_of(stream).snapshot() as snapshot:
        return sum(1 for _ in snapshot.execute_sql(f"SELECT {', '.join(COLUMNS)} FROM {NAME}"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kill-every", type=float, default=_SECONDS_MAX)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    tell(measure(options.rows, options.kill_every), options.json)


if __name__ == "__main__":
    main()
