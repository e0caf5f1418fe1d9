"""How soon a pipeline obeys: seconds from the request in the store until its state.

The service runs as a process against an emulator whose partitions churn every 2 s, while 20
transactions a second are written.

    python -m bench.control [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.figures import tell
from bench.service import service_settings
from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.epochs import last_epochs
from slackwater.state.models import DesiredState, PipelineState
from slackwater.state.store import Store
from tests.support.emulators import own_database

_SECONDS_MAX = 60


def measure(rounds: int) -> dict[str, Any]:
    """Return the median and worst times of each request, and the median of an epoch."""
    with (
        tempfile.TemporaryDirectory() as name,
        own_database(partition_alive_seconds=2) as stream,
    ):
        folder = Path(name)
        connection = Connection(stream)
        start_ns = connection.strong_read_timestamp_ns()
        service = Service(service_settings(folder, stream, start_ns), folder, os.environ)
        service.start()
        service.wait_for_watermark(start_ns, seconds_max=90)
        store = Store.open(f"sqlite:///{folder / 'state.db'}", migrate=False)
        stop = threading.Event()
        load = Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
        rate: dict[str, Any] = {"transactions_per_second": 20, "seconds": 3_600, "stop": stop}
        writer = threading.Thread(target=load.run, kwargs=rate)
        writer.start()
        seconds: dict[str, list[float]] = {}

        def obeyed(verb: str, wanted: DesiredState, done: Callable[[], bool]) -> None:
            begun = time.monotonic()
            store.request("bench", wanted)
            _wait(done)
            seconds.setdefault(verb, []).append(time.monotonic() - begun)

        try:
            for _ in range(rounds):
                service.wait_for_watermark(connection.strong_read_timestamp_ns(), seconds_max=90)
                obeyed("pause", DesiredState.PAUSED, lambda: _is(store, PipelineState.PAUSED))
                obeyed("resume", DesiredState.RUNNING, lambda: _is(store, PipelineState.RUNNING))
                for verb, wanted in (
                    ("drain", DesiredState.DRAINING),
                    ("stop", DesiredState.STOPPED),
                ):
                    service.wait_for_watermark(
                        connection.strong_read_timestamp_ns(), seconds_max=90
                    )
                    obeyed(verb, wanted, lambda: _is(store, PipelineState.NOT_RUNNING))
                    assert service.wait(_SECONDS_MAX) == 0
                    service.start()
        finally:
            stop.set()
            writer.join()
        epoch = statistics.median(e.seconds for e in last_epochs(store, "bench", limit=100))
        store.close()
        service.drain()
    return {
        "epoch_median_seconds": round(epoch, 2),
        **{f"{verb}_median_seconds": round(statistics.median(s), 2) for verb, s in seconds.items()},
        **{f"{verb}_worst_seconds": round(max(s), 2) for verb, s in seconds.items()},
    }


def _is(store: Store, state: PipelineState) -> bool:
    pipeline = store.pipeline("bench")
    return pipeline is not None and pipeline.state is state


def _wait(done: Callable[[], bool]) -> None:
    until = time.monotonic() + _SECONDS_MAX
    while not done():
        assert time.monotonic() < until
        time.sleep(0.02)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    tell(measure(options.rounds), options.json)


if __name__ == "__main__":
    main()
