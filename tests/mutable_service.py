"""The service over streams with mutable key ranges, killed again and again: nothing is lost.

`python -m tests.mutable_service --runs 5 --kills 3`. The server is synthetic and speaks Spanner's
protocol; its histories are seeded, and pass while the service runs: partitions start and end, and
keys move between them.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.records import PartitionEndRecord, PartitionEventRecord, PartitionStartRecord
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.testing.compare import cut_violations, read_changelog
from slackwater.timestamp import format_rfc3339
from tests.faults.mutable_seeded import (
    expected_rows,
    read_functions,
    require_equal,
    rows_of,
)
from tests.kills import Moment, Watched
from tests.services import settings
from tests.simulation.mutable_history import random_mutable_history
from tests.synthetic.mutable import scripted
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

_STEPS = 80
_STEP_US = 500_000
_CATCH_UP_S_MAX = 180


def run(seed: int, kills: int, folder: Path) -> Counter[str]:
    """Run the service over one history, and return what it held.

    Raises:
        AssertionError: the output differs from the truth, or an epoch is no consistent cut.
    """
    choose = random.Random(seed)
    dialect = list(Dialect)[seed % 2]
    begin_us = time.time_ns() // 1_000
    history = random_mutable_history(choose, steps=_STEPS, **read_functions(seed))
    script = scripted(history, dialect, start_us=begin_us, step_us=_STEP_US)
    start_us, end_us = begin_us + _STEP_US, begin_us + _STEPS * _STEP_US
    with synthetic_process(script) as host:
        stream = ChangeStream("test-project", "test", "test-db", CHANGE_STREAM, emulator_host=host)
        pipeline = settings(stream, folder, format_rfc3339(start_us * 1_000))
        # Short, so that there are many however late the service has started.
        pipeline["epoch"] |= {"proof": choose.choice(("ok", "record")), "max_span": "2s"}
        service = Service(pipeline, folder, {**os.environ, "SPANNER_EMULATOR_HOST": host})
        service.start()
        try:
            _kill(service, kills, choose, folder)
            through_ns = watermark_for_end(end_us * 1_000)
            service.wait_for_watermark(through_ns, seconds_max=_CATCH_UP_S_MAX)
            assert service.drain() == 0
        finally:
            service.kill()
    output = read_changelog(folder / "changes")
    require_equal(rows_of(output), expected_rows(script, start_us - 1))
    assert cut_violations(output) == [], f"seed {seed}"
    return _contents(script) + Counter(
        records=output.num_rows, kills=kills, epochs=len(set(output["low_watermark"].to_pylist()))
    )


def _kill(service: Service, kills: int, choose: random.Random, folder: Path) -> None:
    service.wait_for_watermark(1, seconds_max=_CATCH_UP_S_MAX)
    for _ in range(kills):
        Watched(folder).wait(choose.choice(list(Moment)))
        time.sleep(choose.choice((0.0, choose.uniform(0, 0.3))))
        service.kill()
        reached_ns = service.low_watermark_ns() or 0
        service.start()
        service.wait_for_watermark(reached_ns + 1, seconds_max=_CATCH_UP_S_MAX)


def _contents(script: Script) -> Counter[str]:
    kinds = {
        PartitionStartRecord: "starts",
        PartitionEndRecord: "ends",
        PartitionEventRecord: "events",
    }
    return Counter(
        kinds[type(record)]
        for partition in script.partitions
        if isinstance(partition.rows, ListedRows)
        for record in partition.rows.records
        if type(record) in kinds
    )


def main() -> int:
    """Run as often as asked, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kills", type=int, default=3)
    options = parser.parse_args()
    for seed in range(options.first, options.first + options.runs):
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            seen = run(seed, options.kills, Path(folder))
        print(f"seed {seed}: equal, {time.monotonic() - began:.0f} s {dict(seen)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
