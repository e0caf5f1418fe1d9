"""Many seeded lives of pipelines over a synthetic Bigtable, in several processes.

Each is one of tests.simulation.test_bigtable_epochs: its process dies, perhaps with its store, its
calls break, rows of its tasks are lost. `python -m tests.proofs.bigtable_lives --seeds 2000`
"""

import itertools
import os
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Final

from tests.simulation.test_bigtable_epochs import LIKELY, live
from tests.support.programs import parsed_options

# Most take less than a second. One that takes so long does not come to an end.
_LIFE_S_MAX: Final = 300


def outcome(seed: int, likely: float) -> tuple[int, int, str]:
    """Return a life's deaths, lost parts, and what went wrong; empty if nothing did."""

    def end(number: int, _frame: object) -> None:
        raise TimeoutError(f"signal {number}: the life did not end in {_LIFE_S_MAX} s")

    signal.signal(signal.SIGALRM, end)
    signal.alarm(_LIFE_S_MAX)
    try:
        with tempfile.TemporaryDirectory() as folder:
            world = live(seed, likely, Path(folder))
            return world.deaths, world.losses, ""
    except Exception:  # noqa: BLE001 - the others go on
        return 0, 0, traceback.format_exc()
    finally:
        signal.alarm(0)


def main() -> int:
    """Run as many lives as asked at each level, and print those that failed."""
    options = parsed_options(__doc__, seeds=2_000, first=0, processes=os.cpu_count())
    seeds = range(options.first, options.first + options.seeds)
    lives = list(itertools.product(seeds, LIKELY))
    began, deaths, losses, failures = time.monotonic(), 0, 0, 0
    with ProcessPoolExecutor(options.processes, get_context("spawn")) as pool:
        for life, (died, lost, wrong) in zip(
            lives, pool.map(outcome, *zip(*lives, strict=True)), strict=True
        ):
            deaths += died
            losses += lost
            if wrong:
                failures += 1
                print(f"seed {life[0]}, likely {life[1]}:\n{wrong}", flush=True)
    took_s = time.monotonic() - began
    print(
        f"{len(lives)} lives with {deaths} deaths and {losses} lost parts, {failures} failures;"
        f" {took_s:.0f} s, {len(lives) / took_s:.1f} lives a second"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
