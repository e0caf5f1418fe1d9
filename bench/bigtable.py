"""Bigtable, wire to Arrow: changes a CPU-second of our reader, compared with Google's client.

Both read the same changes of a synthetic server, which is a process of its own: ours into all
columns of the output, google-cloud-bigtable's generated client in a loop that looks at the same
fields. Each round they take turns. With --whole a pipeline lands the changes in Parquet, as they
come: its lag is from a change's commit until its epoch is readable.

    python -m bench.bigtable [--seconds 60] [--rate 20000] [--tablets 1000] [--whole] [--json FILE]
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from google.auth.credentials import AnonymousCredentials
from google.cloud.bigtable_v2 import BigtableClient
from google.cloud.bigtable_v2.services.bigtable.transports import BigtableGrpcTransport
from google.cloud.bigtable_v2.types import (
    ReadChangeStreamRequest,
    RowRange,
    StreamContinuationToken,
    StreamContinuationTokens,
    StreamPartition,
)
from grpc import insecure_channel

from bench.figures import tell
from bench.freshness import percentile
from bench.read_cpu import cpu_seconds
from slackwater.demo.service import Service
from slackwater.endpoint import plaintext
from slackwater.reader.bigtable.change_rows import batches_of
from slackwater.reader.bigtable.changes import Changes
from slackwater.reader.bigtable.partition_read import PartitionRead
from slackwater.reader.bigtable.positions import Position, Read, reads_of, starting_at
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.transport.receive_loop import receive_loop
from slackwater.scheduler.tasks.byte_queue import ByteQueue
from slackwater.testing.compare import freshness_seconds
from slackwater.timestamp import format_rfc3339, us_to_ns
from tests.synthetic.bigtable.history import Change, History, SetCell, Tablet
from tests.synthetic.bigtable.server import bigtable_process, now_us
from tests.synthetic.bigtable.service import TABLE

_VALUE: Final = bytes(range(100))
# As many reads as a task of a pipeline has at once.
_AT_ONCE: Final = 16
_QUEUE_BYTES: Final = 8 * 1024 * 1024
_SECOND_US: Final = 1_000_000
# To make the history, and then to start Spark.
_MAKE_US: Final = 45 * _SECOND_US
_START_US: Final = 45 * _SECOND_US
_CATCH_UP_S_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class Load:
    """A table's changes: each sets a cell of 100 bytes.

    Attributes:
        start_us: the time of the first, microseconds.
        seconds: how long they come.
        rate: changes a second, spread over the tablets in turn.
        tablets: as many partitions, which stay.
    """

    start_us: int
    seconds: int
    rate: int
    tablets: int

    @property
    def changes(self) -> int:
        """The number of changes."""
        return self.seconds * self.rate

    @property
    def end_us(self) -> int:
        """The time after the last change."""
        return self.start_us + self.seconds * _SECOND_US

    def history(self) -> History:
        """Return the changes and tablets."""
        borders = [b"", *(b"%06d" % number for number in range(1, self.tablets)), b""]
        created_us = self.start_us - _START_US
        tablets = tuple(Tablet(*keys, created_us) for keys in pairwise(borders))
        return History([self._change(i) for i in range(self.changes)], tablets)

    def _change(self, number: int) -> Change:
        at_us = self.start_us + number * _SECOND_US // self.rate
        turn, tablet = divmod(number, self.tablets)
        key = b"%06d#%08d" % (tablet, turn % 10)
        cell = SetCell("info", b"name", at_us // 1_000 * 1_000, _VALUE)
        return Change(at_us, at_us, key, number & 0x7FFFFFFF, "cluster-1", False, (cell,))


def ours(host: str, load: Load, ends_us: Sequence[int]) -> int:
    """Read epochs that end at these times into Arrow, and return the number of changes."""
    endpoint = plaintext(host)
    service = BigtableService(BigtableTable("project", "instance", "table", endpoint=endpoint))
    positions = starting_at(service.partitions(), load.start_us)
    rows = 0

    def read(
        end_us: int, queue: ByteQueue[Changes], partition: Read, after: list[Position]
    ) -> None:
        def deliver(changes: Changes) -> None:
            queue.put(changes, changes.size_bytes)

        after += PartitionRead(service, partition, end_us, 1_000, deliver).run().positions

    def rows_in(end_us: int, queue: ByteQueue[Changes]) -> int:
        return sum(batch.num_rows for batch in batches_of(queue, end_us))

    with ThreadPoolExecutor(1) as receiver:
        for end_us in ends_us:
            queue = ByteQueue[Changes](_QUEUE_BYTES)
            received = receiver.submit(rows_in, end_us, queue)
            after: list[Position] = []
            try:
                with receive_loop(_AT_ONCE) as loop:
                    for partition in reads_of(positions):
                        loop.submit(read, end_us, queue, partition, after)
            finally:
                queue.end()
            positions = after
            rows += received.result()
    service.close()
    return rows


def client(host: str, load: Load, ends_us: Sequence[int]) -> int:
    """Read the same with the generated client, and return the number of changes."""
    transport = BigtableGrpcTransport(
        channel=insecure_channel(host), credentials=AnonymousCredentials()
    )
    generated = BigtableClient(transport=transport)
    partitions = generated.generate_initial_change_stream_partitions(table_name=TABLE)
    tokens: dict[bytes, str] = {}
    ranges: list[RowRange] = [each.partition.row_range for each in partitions]

    def read(end_us: int, keys: RowRange) -> int:
        partition = StreamPartition(row_range=keys)
        request = ReadChangeStreamRequest(
            table_name=TABLE, partition=partition, heartbeat_duration={"seconds": 1}
        )
        ReadChangeStreamRequest.pb(request).end_time.FromMicroseconds(end_us)
        if (token := tokens.get(keys.start_key_closed)) is None:
            ReadChangeStreamRequest.pb(request).start_time.FromMicroseconds(load.start_us)
        else:
            part = StreamContinuationToken(partition=partition, token=token)
            request.continuation_tokens = StreamContinuationTokens(tokens=[part])
        count = 0
        for response in generated.read_change_stream(request):
            if "data_change" in response:
                change = response.data_change
                _look_at(change)
                tokens[keys.start_key_closed] = change.token
                count += 1
            elif "close_stream" in response:
                break
        return count

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return sum(sum(pool.map(partial(read, end_us), ranges)) for end_us in ends_us)


def _look_at(change: Any) -> tuple[Any, ...]:
    entries = []
    for chunk in change.chunks:
        cell = chunk.mutation.set_cell
        entries.append((cell.family_name, cell.column_qualifier, cell.timestamp_micros, cell.value))
    return (
        change.row_key,
        change.type_,
        change.source_cluster_id,
        change.commit_timestamp,
        change.tiebreaker,
        change.estimated_low_watermark,
        entries,
    )


def measure(load: Load, epochs: int, rounds: int) -> dict[str, Any]:
    """Let both read all changes, in so many epochs; return changes a CPU-second and the ratio."""
    step_us = load.seconds * _SECOND_US // epochs
    ends_us = [load.start_us + step_us * number for number in range(1, epochs + 1)]
    sides: dict[str, Callable[[str, Load, Sequence[int]], int]] = {"ours": ours, "client": client}
    spent: dict[str, list[float]] = {side: [] for side in sides}
    with bigtable_process(load.history) as host:
        for _ in range(rounds):
            for side, read in sides.items():
                before = time.process_time()
                changes = read(host, load, ends_us)
                spent[side].append(time.process_time() - before)
                if changes != load.changes:
                    raise SystemExit(f"{side} read {changes} of {load.changes} changes")
    ratios = [c / o for o, c in zip(spent["ours"], spent["client"], strict=True)]
    return {
        "changes": load.changes,
        "tablets": load.tablets,
        "changes_a_read": round(load.changes / load.tablets / epochs),
        **{
            f"{side}_changes_per_cpu_second": round(load.changes / statistics.median(seconds))
            for side, seconds in spent.items()
        },
        "ours_to_client": round(statistics.median(ratios), 1),
    }


def measure_whole(load: Load) -> dict[str, Any]:
    """Let a pipeline land the changes as they come; return its lag and its cost."""
    with tempfile.TemporaryDirectory() as name, bigtable_process(load.history) as host:
        folder = Path(name)
        service = Service(_settings(load, folder), folder, {**os.environ, **_emulator(host)})
        time.sleep(max(0, (load.start_us - _START_US - now_us()) / 1e6))
        before = cpu_seconds()
        service.start()
        try:
            end_ns = us_to_ns(load.end_us)
            service.wait_for_watermark(end_ns, seconds_max=load.seconds + _CATCH_UP_S_MAX)
            caught_up_s = time.time() - load.end_us / 1e6
            spent = cpu_seconds() - before
            service.drain()
        finally:
            service.kill()
        lags = freshness_seconds(folder / "changes")
        epochs = len(list((folder / "changes").glob("epoch=*")))
    if len(lags) != load.changes:
        raise SystemExit(f"{len(lags)} of {load.changes} changes landed")
    return {
        "changes": load.changes,
        "tablets": load.tablets,
        "epochs": epochs,
        "median_lag_seconds": round(statistics.median(lags), 1),
        "p99_lag_seconds": round(percentile(lags, 0.99), 1),
        "worst_lag_seconds": round(lags[-1], 1),
        "caught_up_after_seconds": round(caught_up_s, 1),
        "changes_per_cpu_second": round(load.changes / spent),
    }


def _settings(load: Load, folder: Path) -> dict[str, Any]:
    *_, project, _, instance, _, table = ("", *TABLE.split("/"))
    return {
        "pipeline": "bench",
        "source": {
            "kind": "bigtable",
            "project": project,
            "instance": instance,
            "table": table,
            "start": format_rfc3339(us_to_ns(load.start_us - _START_US)),
        },
        "sink": {"path": str(folder / "changes"), "checkpoint": str(folder / "checkpoint")},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
        "spark": {"master": "local[2]"},
    }


def _emulator(host: str) -> dict[str, str]:
    return {"BIGTABLE_EMULATOR_HOST": host}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--tablets", type=int, default=1_000)
    parser.add_argument("--epochs", type=int, default=1, help="in which all is read")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    start_us = now_us() // _SECOND_US * _SECOND_US
    start_us += _MAKE_US + _START_US if options.whole else -2 * options.seconds * _SECOND_US
    load = Load(start_us, options.seconds, options.rate, options.tablets)
    if options.whole:
        tell(measure_whole(load), options.json)
    else:
        tell(measure(load, options.epochs, options.rounds), options.json)


if __name__ == "__main__":
    main()
