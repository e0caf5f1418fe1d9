"""The load of bench.ceiling, read by what a user would pick instead.

spanner-change-streams-tail (Go) writes JSON to a pipe. google-cloud-spanner's loop, as Spanner's
documents suggest it, has a thread for each partition and does nothing with what it reads. Told are
the records that each of them gets a second, its cores and its memory.

    python -m bench.ceiling_peers [--go PATH] [--seconds 60] [--partitions 10000] [--records 60000]
        [--json FILE]
"""

import argparse
import multiprocessing
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

import psutil
from google.cloud.spanner_v1 import param_types

from bench.ceiling import Load
from bench.figures import tell
from bench.reading import go_command
from bench.service import cpu_s, synthetic_stream
from slackwater.reader.change_stream import ChangeStream
from slackwater.testing.emulator_database import database_of
from slackwater.timestamp import datetime_to_rfc3339, format_rfc3339
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

WARM_UP_S: Final = 30.0
_PIPE_BYTES: Final = 1 << 20

# A number of records that another thread or process raises.
Count = Any
Peer = Callable[[ChangeStream, int, Count], AbstractContextManager[int]]


@contextmanager
def go_tool(path: str, stream: ChangeStream, start_ns: int, count: Count) -> Iterator[int]:
    """Run spanner-change-streams-tail; yield the process's number."""
    command = go_command(path, stream, start_ns)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0)
    assert process.stdout is not None
    counting = threading.Thread(target=_count_in, args=(process.stdout, count))
    counting.start()
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()
        counting.join()


def _count_in(pipe: IO[bytes], count: Count) -> None:
    while written := pipe.read(_PIPE_BYTES):
        count.value += written.count(b'"commit_timestamp"')


@contextmanager
def plain_client(stream: ChangeStream, start_ns: int, count: Count) -> Iterator[int]:
    """Run the client's loop in a process of its own; yield the process's number."""
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_read_for_ever, args=(stream, start_ns, count))
    process.start()
    try:
        assert process.pid is not None
        yield process.pid
    finally:
        process.kill()
        process.join()


def _read_for_ever(stream: ChangeStream, start_ns: int, count: Count) -> None:
    """Read with a thread for each partition."""
    database = database_of(stream)
    sql = (
        f"SELECT ChangeRecord FROM READ_{CHANGE_STREAM}(start_timestamp => @start,"
        " end_timestamp => @end, partition_token => @token, heartbeat_milliseconds => @beat)"
    )
    kinds = {
        **dict.fromkeys(("start", "end"), param_types.TIMESTAMP),
        "token": param_types.STRING,
        "beat": param_types.INT64,
    }
    begun: set[str] = set()
    lock = threading.Lock()

    def read(token: str | None, start: str) -> None:
        values = {"start": start, "end": None, "token": token, "beat": 10_000}
        with database.snapshot() as snapshot:
            for row in snapshot.execute_sql(sql, params=values, param_types=kinds):
                for changes, _, announcements in row[0]:
                    with lock:
                        count.value += len(changes)
                    for begins, _, children in announcements:
                        for child in children:
                            begin(child[0], datetime_to_rfc3339(begins))

    def begin(token: str, start: str) -> None:
        with lock:
            is_new = token not in begun
            begun.add(token)
        if is_new:
            threading.Thread(target=read, args=(token, start), daemon=True).start()

    read(None, format_rfc3339(start_ns))
    threading.Event().wait()


def measure(load: Load, peer: Peer, seconds: float) -> dict[str, Any]:
    """Have a peer read the load, and return its figures after a warm-up."""
    count = multiprocessing.get_context("spawn").Value("q", 0, lock=False)
    start_us = time.time_ns() // 1_000 + 2_000_000
    with synthetic_process(load.script(start_us)) as host:
        os.environ["SPANNER_EMULATOR_HOST"] = host
        time.sleep(max(0.0, start_us / 1e6 - time.time()))
        with peer(synthetic_stream(host), start_us * 1_000, count) as pid:
            process = psutil.Process(pid)
            time.sleep(WARM_UP_S)
            before_s, before = cpu_s(process), count.value
            time.sleep(seconds)
            spent_s, records = cpu_s(process) - before_s, count.value - before
            mib = process.memory_info().rss / 2**20
        del os.environ["SPANNER_EMULATOR_HOST"]
    return {
        "records_per_second": round(records / seconds),
        "cpu": round(spent_s / seconds, 2),
        "mib": round(mib),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--go", help="path of spanner-change-streams-tail")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--partitions", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=60_000, help="a second")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seconds = options.seconds + 2 * WARM_UP_S
    load = Load(options.partitions, options.records, 1_049, 100, seconds)
    peers: dict[str, Peer] = {"client": plain_client}
    if options.go:
        peers["go"] = partial(go_tool, options.go)
    tell({name: measure(load, peer, options.seconds) for name, peer in peers.items()}, options.json)


if __name__ == "__main__":
    main()
