"""The service over streams with mutable key ranges, killed again and again: nothing is lost.

`python -m tests.proofs.mutable_service --runs 200 --kills 3 --at-once 10`. The server is synthetic
and speaks Spanner's protocol; its histories are seeded, and pass while the service runs: partitions
start and end, and keys move between them. A service has a pipeline for each of ten histories, and
some of its queries are late, break or are refused.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from tests.faults.proxy import Breaks, Delays, FaultProxy, Rule
from tests.proofs.kills import Moment, Watched
from tests.proofs.sinks import Pipelines
from tests.simulation.mutable_history import random_mutable_history
from tests.support.services import settings
from tests.synthetic.mutable import scripted
from tests.synthetic.rows import ListedRows
from tests.synthetic.script import Script
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

_STEPS = 80
_STEP_US = 500_000
_CATCH_UP_S_MAX = 600
_FAULTS: list[Rule] = [Breaks(0.05, messages_max=4, refusals=0.1), Delays(0.1)]
# The store's file is that of all pipelines, and not below a pipeline's folder.
_MOMENTS = [moment for moment in Moment if moment is not Moment.STORE_TRANSACTION]


@dataclass(frozen=True)
class Life:
    """A history that passes, and the pipeline that reads it.

    Attributes:
        seed: of the history and of its pipeline's settings.
        script: the history, as its server plays it.
        between_us: the time that the pipeline reads.
        folder: for all that it writes.
    """

    seed: int
    script: Script
    between_us: tuple[int, int]
    folder: Path

    @property
    def name(self) -> str:
        return f"seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        """Return the keys of its pipeline."""
        stream = ChangeStream("test-project", "test", self.name, CHANGE_STREAM)
        own = settings(stream, self.folder, format_rfc3339(self.between_us[0] * 1_000))
        proof = ("ok", "record")[self.seed // 2 % 2]
        # Short, so that there are many however late the service has started.
        own["epoch"] |= {"proof": proof, "max_span": "2s"}
        return {name: own[name] for name in ("source", "epoch", "sink")}

    def require_equal(self) -> Counter[str]:
        """Compare the output with the truth, and return what it held.

        Raises:
            AssertionError: it differs, or an epoch is no consistent cut.
        """
        output = read_changelog(self.folder / "changes")
        require_equal(rows_of(output), expected_rows(self.script, self.between_us[0] - 1))
        assert cut_violations(output) == [], self.name
        epochs = len(set(output["low_watermark"].to_pylist()))
        return _contents(self.script) + Counter(records=output.num_rows, epochs=epochs)


def run(seeds: Sequence[int], kills: int, folder: Path) -> Counter[str]:
    """Run a service with a pipeline for each seed's history, and return what they held.

    Raises:
        AssertionError: an output differs from the truth, or an epoch is no consistent cut.
    """
    choose = random.Random(seeds[0])
    begin_us = time.time_ns() // 1_000
    lives = [_life(seed, begin_us, folder / f"seed{seed}") for seed in seeds]
    shared = {
        "pipelines": {life.name: life.settings() for life in lives},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
        "spark": {"master": "local[2,4]", "conf": {"spark.driver.memory": "2g"}},
    }
    with (
        synthetic_process({life.name: life.script for life in lives}) as host,
        FaultProxy(host, _FAULTS, seed=seeds[0]) as proxy,
    ):
        environ = os.environ | {"SPANNER_EMULATOR_HOST": proxy.host}
        service = Pipelines(shared, [life.name for life in lives], folder, environ)
        service.start()
        try:
            _kill(service, kills, choose, [life.folder for life in lives])
            through_ns = watermark_for_end(lives[0].between_us[1] * 1_000)
            service.wait_for_watermark(through_ns, seconds_max=_CATCH_UP_S_MAX)
            assert service.drain() == 0
        finally:
            service.kill()
    seen = Counter(kills=kills, faults=proxy.injected.total())
    return sum((life.require_equal() for life in lives), seen)


def _life(seed: int, begin_us: int, folder: Path) -> Life:
    dialect = list(Dialect)[seed % 2]
    functions = read_functions(seed)
    history = random_mutable_history(random.Random(seed), steps=_STEPS, **functions)
    script = scripted(history, dialect, start_us=begin_us, step_us=_STEP_US)
    between_us = (begin_us + _STEP_US, begin_us + _STEPS * _STEP_US)
    return Life(seed, script, between_us, folder)


def _kill(service: Pipelines, kills: int, choose: random.Random, folders: Sequence[Path]) -> None:
    service.wait_for_watermark(1, seconds_max=_CATCH_UP_S_MAX)
    for _ in range(kills):
        # A history may have passed, and then no epoch of its pipeline has records.
        Watched(choose.choice(folders)).wait(choose.choice(_MOMENTS), epochs_max=3)
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
    parser.add_argument("--at-once", type=int, default=1, help="pipelines of one service")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.runs)
    for first in seeds[:: options.at_once]:
        some = range(first, min(seeds.stop, first + options.at_once))
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            seen = run(some, options.kills, Path(folder))
        text = f"seeds {first} to {some[-1]}: equal, {time.monotonic() - began:.0f} s"
        print(f"{text} {dict(seen)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
