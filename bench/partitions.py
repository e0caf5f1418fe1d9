"""Epochs over many idle partitions, and over partitions that all split, merge or move.

With mutable key ranges, keys move between partitions that live on.

The service runs on a synthetic server; its epochs' seconds come from its own log.

    python -m bench.partitions [--partitions 1000] [--store postgresql] [--churn] [--moves 100]
        [--json FILE]
"""

import argparse
import os
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.figures import tell
from bench.freshness import stage_seconds
from bench.service import service_settings, synthetic_stream
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.state.epochs import last_epochs
from slackwater.state.models import Epoch
from slackwater.state.store import Store
from tests.support.epochs import EpochLoop
from tests.support.postgres import running_server
from tests.synthetic.mutable import moving
from tests.synthetic.script import Script, lineage
from tests.synthetic.server import synthetic_process

EPOCHS: Final = 6
WARM_UP_EPOCHS: Final = 2


def measure(
    partitions: int, store_kind: str, *, churn: bool, moves: int | None = None
) -> dict[str, Any]:
    """Measure the seconds of an epoch and its stages: medians after a warm-up.

    Args:
        partitions: how many there are.
        store_kind: the metadata store, "sqlite" or "postgresql".
        churn: in every second epoch all partitions split, merge or move.
        moves: how many times a second keys move, with mutable key ranges; None for the other mode.
    """
    start_us = time.time_ns() // 1_000 - 3_600_000_000
    every_us = 60_000_000
    # In every second epoch all partitions hand over.
    changes = [start_us + every_us * (n + 1) - every_us // 2 for n in range(2, EPOCHS * 2, 2)]
    end_us = start_us + every_us * EPOCHS * 2
    if moves is None:
        made = lineage(partitions, start_us - 10_000_000, changes if churn else [], seed=1)
        script = Script(Dialect.GOOGLE_STANDARD_SQL, tuple(made))
    else:
        script = moving(partitions, (start_us, end_us), moves, seed=1)
    with ExitStack() as stack:
        host = stack.enter_context(synthetic_process(script))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"sqlite:///{folder / 'state.db'}"
        if store_kind == "postgresql":
            url = stack.enter_context(running_server())
        stream = synthetic_stream(host)
        planning = planning_seconds(stream, url, start_us)
        epochs, stages = _served(stream, folder, url, (start_us * 1_000, end_us * 1_000))
    seconds = [epoch.seconds for epoch in epochs]
    ends_us = [epoch.end_ns // 1_000 for epoch in epochs]
    churned = [
        s
        for s, end_us in zip(seconds, ends_us, strict=True)
        if any(end_us - every_us < change_us <= end_us for change_us in changes)
    ]
    result: dict[str, Any] = {
        "partitions": partitions,
        "store": store_kind,
        "churn": churn,
        "moves_per_second": moves,
        "epoch_median_seconds": round(statistics.median(seconds), 3),
        "planning_seconds": planning,
        "stages": stages,
    }
    if churn:
        still = [s for s in seconds if s not in churned]
        result["epoch_with_churn_median_seconds"] = round(statistics.median(churned), 3)
        result["epoch_without_churn_median_seconds"] = round(statistics.median(still), 3)
    return result


def _served(
    stream: ChangeStream, folder: Path, url: str, between_ns: tuple[int, int]
) -> tuple[list[Epoch], dict[str, float]]:
    """Run the service over a time; return its epochs after a warm-up, and the stages' seconds."""
    start_ns, end_ns = between_ns
    settings = service_settings(
        folder, stream, start_ns, end_ns=end_ns, epoch={"max_span": "60s"}, state_url=url
    )
    environ = os.environ | {"SPANNER_EMULATOR_HOST": stream.endpoint.target}
    service = Service(settings, folder, environ)
    service.start()
    service.wait_for_watermark(end_ns, seconds_max=900)
    service.drain()
    store = Store.open(url, migrate=False)
    epochs = last_epochs(store, "bench", limit=1_000)[1 + WARM_UP_EPOCHS :]
    store.close()
    return epochs, stage_seconds(service.log.read_text(errors="replace"))


def planning_seconds(stream: ChangeStream, state_url: str, start_us: int) -> float:
    """Return the median seconds to plan an epoch over all partitions in the store."""
    loop = EpochLoop(stream, state_url, start_ns=start_us * 1_000, options={"tasks": "2"})
    start_ns = loop.planner.first_watermark_ns()
    loop.planner.plan_first(start_ns)
    loop.planner.commit(start_ns)
    spent = []
    for number in range(1, 6):
        began = time.monotonic()
        tasks = loop.planner.plan(start_ns, start_ns + number * 1_000_000)
        spent.append(time.monotonic() - began)
        assert sum(len(task.roots) for task in tasks) > 0
    loop.close()
    return round(statistics.median(spent), 3)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=1_000)
    parser.add_argument("--store", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--churn", action="store_true")
    parser.add_argument("--moves", type=int)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = measure(options.partitions, options.store, churn=options.churn, moves=options.moves)
    tell(figures, options.json)


if __name__ == "__main__":
    main()
