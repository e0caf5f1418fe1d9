"""The service over streams with mutable key ranges, killed again and again: nothing is lost.

`python -m tests.proofs.mutable_service --runs 200 --kills 3 --at-once 10`. The server is synthetic
and speaks Spanner's protocol; its histories are seeded, and pass while the service runs: partitions
start and end, and keys move between them. A service has a pipeline for each of ten histories, with
sinks of all kinds in turn, and some of its queries are late, break or are refused.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from slackwater.scheduler.epoch import watermark_for_end
from tests.faults.proxy import Breaks, Delays, FaultProxy, Rule
from tests.proofs.kills import Moment, Watched
from tests.proofs.mutable_sinks import KINDS, life_of
from tests.proofs.sinks import Pipelines
from tests.support.kafka_broker import Broker, spark_conf
from tests.synthetic.server import synthetic_process

_STEPS = 80
_CATCH_UP_S_MAX = 600
_FAULTS: list[Rule] = [Breaks(0.05, messages_max=4, refusals=0.1), Delays(0.1)]
# The store's file is that of all pipelines, and not below a pipeline's folder.
_MOMENTS = [moment for moment in Moment if moment is not Moment.STORE_TRANSACTION]


def run(seeds: Sequence[int], kills: int, folder: Path, sink: str | None = None) -> Counter[str]:
    """Run a service with a pipeline for each seed's history, and return what they held.

    Args:
        seeds: of the histories.
        kills: how often the service is killed.
        folder: for all that is written.
        sink: of all pipelines; None for another one with each seed.

    Raises:
        AssertionError: an output differs from the truth, or an epoch is no consistent cut.
    """
    choose = random.Random(seeds[0])
    broker = Broker(folder)
    begin_us = time.time_ns() // 1_000
    lives = [
        life_of(seed, begin_us, _STEPS, folder / f"seed{seed}", broker.host, sink) for seed in seeds
    ]
    shared = {
        "pipelines": {life.name: life.settings() for life in lives},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
        "spark": {"master": "local[2,4]", "conf": {"spark.driver.memory": "2g", **spark_conf()}},
    }
    with (
        ExitStack() as stack,
        synthetic_process({life.name: life.source.script for life in lives}) as host,
        FaultProxy(host, _FAULTS, seed=seeds[0]) as proxy,
    ):
        environ = os.environ | {"SPANNER_EMULATOR_HOST": proxy.host}
        stack.callback(broker.kill)
        broker.start()
        service = Pipelines(shared, [life.name for life in lives], folder, environ)
        service.start()
        stack.callback(service.kill)
        _kill(service, kills, choose, [life.folder for life in lives])
        through_ns = watermark_for_end(lives[0].between_us[1] * 1_000)
        service.wait_for_watermark(through_ns, seconds_max=_CATCH_UP_S_MAX)
        assert service.drain() == 0
        seen = Counter(kills=kills, faults=proxy.injected.total())
        return sum((life.require_equal() for life in lives), seen)


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


def main() -> int:
    """Run as often as asked, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--at-once", type=int, default=1, help="pipelines of one service")
    parser.add_argument("--sink", choices=KINDS, help="of all pipelines")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.runs)
    for first in seeds[:: options.at_once]:
        some = range(first, min(seeds.stop, first + options.at_once))
        began = time.monotonic()
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            seen = run(some, options.kills, Path(folder), options.sink)
        text = f"seeds {first} to {some[-1]}: equal, {time.monotonic() - began:.0f} s"
        print(f"{text} {dict(seen)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
