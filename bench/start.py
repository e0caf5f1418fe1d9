"""How soon a start is effective: seconds until the first epoch is durable.

With and without an archive of the JVM's classes, in turn.

    python -m bench.start [--rounds 5] [--json FILE]
"""

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.figures import tell
from bench.service import service_settings
from slackwater.commands.class_archive import make
from slackwater.demo.service import Service
from slackwater.reader.transport.connection import Connection
from tests.support.emulators import own_database

_SECONDS_MAX = 120


def measure(rounds: int) -> dict[str, Any]:
    """Measure both, and return their medians and the median ratio of the pairs."""
    seconds: dict[str, list[float]] = {"plain": [], "archive": []}
    with (
        tempfile.TemporaryDirectory() as name,
        own_database(partition_alive_seconds=None) as stream,
    ):
        folder = Path(name)
        archive = folder / "classes.jsa"
        make(archive)
        mib = round(archive.stat().st_size / 2**20)
        for number in range(rounds):
            for kind, starts in seconds.items():
                pipeline_settings = service_settings(
                    folder / f"{kind}{number}",
                    stream,
                    Connection(stream).strong_read_timestamp_ns(),
                )
                if kind == "archive":
                    pipeline_settings["spark"]["class_archive"] = str(archive)
                starts.append(
                    _start(Service(pipeline_settings, folder / f"{kind}{number}", os.environ))
                )
    pairs = zip(seconds["archive"], seconds["plain"], strict=True)
    return {
        "archive_mib": mib,
        **{f"{kind}_median_seconds": round(statistics.median(s), 1) for kind, s in seconds.items()},
        "ratio": round(statistics.median(one / other for one, other in pairs), 2),
    }


def _start(service: Service) -> float:
    begun = time.monotonic()
    service.start()
    service.wait_for_watermark(1, seconds_max=_SECONDS_MAX)
    seconds = time.monotonic() - begun
    service.drain()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    tell(measure(options.rounds), options.json)


if __name__ == "__main__":
    main()
