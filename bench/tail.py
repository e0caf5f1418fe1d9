"""`slackwater tail`: seconds from its start to its first line, and of Python's start alone.

python -m bench.tail [--rounds 5] [--json FILE]
"""

import argparse
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench.figures import tell
from slackwater.demo.load import Load
from slackwater.reader.change_stream import Dialect
from slackwater.reader.transport.connection import Connection
from tests.support.emulators import own_database


def seconds_to_first_line(command: list[str]) -> float:
    """Start a program, wait for its first line, and kill it."""
    began = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        spent = time.monotonic() - began
        process.kill()
    if not line:
        raise SystemExit(f"{command[2]} wrote nothing")
    return spent


def measure(rounds: int) -> dict[str, Any]:
    """Measure the seconds of each round, and return their medians."""
    with own_database(partition_alive_seconds=2) as stream:
        connection = Connection(stream)
        cursor = str(connection.strong_read_timestamp_ns())
        connection.close()
        Load(stream, Dialect.GOOGLE_STANDARD_SQL, seed=1).run(transactions_per_second=20, seconds=1)
        tail = [
            *(sys.executable, "-m", "slackwater.cli", "tail", "--cursor", cursor),
            *("--project", stream.project, "--instance", stream.instance),
            *("--database", stream.database, "--change-stream", stream.change_stream),
        ]
        loaded = [sys.executable, "-c", "import slackwater.cli, slackwater.tail.options; print()"]
        firsts, starts = [], []
        for _ in range(rounds):
            starts.append(seconds_to_first_line(loaded))
            firsts.append(seconds_to_first_line(tail))
    return {
        "first_line_seconds": round(statistics.median(firsts), 3),
        "python_start_seconds": round(statistics.median(starts), 3),
        "own_seconds": round(statistics.median(firsts) - statistics.median(starts), 3),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    tell(measure(options.rounds), options.json)


if __name__ == "__main__":
    main()
