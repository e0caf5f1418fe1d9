"""The requests of an epoch to an object store, counted over a thousand epochs of each format.

Epochs of a few records go through a sink as a pipeline makes it, and all that it asks of the store
is counted: its epochs, its log, its commits, its checkpoints of Delta's log. Rounds of maintenance
are forced, because they come by the clock, and counted by themselves. Iceberg's tables are in a
REST catalog; what its server asks of the store counts, and requests to the server do not. Of the
mirrors each epoch changes two.

    python -m tests.proofs.object_requests [--epochs 1000] [--only parquet delta iceberg mirror]
"""

import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.spark_sink.output.maintenance import MaintenancePolicy
from slackwater.spark_sink.sink import Sink
from tests.support import sizing_page
from tests.support.epoch_rows import make_sink, of_two_tables
from tests.support.handed_on import Tasks
from tests.support.object_stores import BUCKET, ServedStore, s3
from tests.support.programs import parsed_options
from tests.support.rest_catalog import counted, rest_catalog

Request = tuple[str, str]
# As docs/sizing.md names them.
ON_PAGE: Final = {
    "parquet": "Parquet, JSON, ORC",
    "delta": "Delta",
    "iceberg": "Iceberg in a REST catalog",
    "mirror": "two Delta mirrors",
}
# Of an epoch, on average.
LIMITS: Final = {"parquet": 10, "delta": 16, "iceberg": 12, "mirror": 50}
# Epochs that are counted together, and what the last of them may take more than the first.
COUNTED: Final = 100
# Then the log's files have been merged, and those that were merged removed.
WARM_UP: Final = 210
# A hundred of Delta's has three or four checkpoints of its log, each of which takes 86 requests; of
# two mirrors it has six or seven each.
GROWTH_MAX: Final = {"parquet": 1.0, "delta": 1.0, "iceberg": 1.0, "mirror": 3.0}
# Of the page's numbers, which have one decimal; of mirrors a hundred has a checkpoint more or less.
ROUNDING: Final = {"parquet": 0.1, "delta": 0.1, "iceberg": 0.1, "mirror": 1.0}


def kind_of(request: Request) -> str:
    """Return what a request is, as its store's price list has it."""
    method, name = request
    if name.strip("/") == BUCKET:
        # Several objects are deleted by one POST to the bucket.
        return {"GET": "LIST", "POST": "DELETE"}.get(method, method)
    return method


def place_of(name: str) -> str:
    """Return a name without what differs between the epochs."""
    return re.sub(r"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f-]{27}|\d[\dTZ.]*\d", "*", name)


@dataclass
class Place:
    """Where epochs go, and what was asked of it.

    Attributes:
        store: the object store.
        sink: writes there.
        catalog: the requests to the catalog's server.
    """

    store: ServedStore
    sink: Sink
    catalog: Sequence[Request] = ()


@dataclass
class Counts:
    """Requests to a store and to a catalog, over some epochs.

    Attributes:
        epochs: how many they were.
        by_kind: the requests to the store, by what they are.
        by_place: the same by name as well, without what differs between the epochs.
        of_catalog: the number of requests to the catalog's server.
    """

    epochs: int
    by_kind: Counter[str] = field(default_factory=Counter)
    by_place: Counter[str] = field(default_factory=Counter)
    of_catalog: int = 0

    @property
    def an_epoch(self) -> float:
        """The requests to the store, on average."""
        return self.by_kind.total() / self.epochs

    def __str__(self) -> str:
        kinds = ", ".join(
            f"{n / self.epochs:.2f} {kind}" for kind, n in sorted(self.by_kind.items())
        )
        of_catalog = f"; {self.of_catalog / self.epochs:.2f} to the catalog"
        return f"{self.an_epoch:.2f} an epoch: {kinds}{of_catalog if self.of_catalog else ''}"


@contextmanager
def counting(place: Place, epochs: int) -> Iterator[Counts]:
    """Count what is asked for in the context."""
    counts = Counts(epochs)
    of_store, of_catalog = len(place.store.requests), len(place.catalog)
    yield counts
    for request in place.store.requests[of_store:]:
        counts.by_kind[kind_of(request)] += 1
        counts.by_place[f"{kind_of(request)} {place_of(request[1])}"] += 1
    counts.of_catalog = len(place.catalog) - of_catalog


class Proof:
    """Writes epochs to a place, and counts.

    Args:
        spark: a session; None for a sink that needs none.
        place: where they go.
        epochs: how many are counted.
    """

    def __init__(self, spark: Any, place: Place, epochs: int) -> None:
        self._spark = spark
        self._place = place
        self._epochs = epochs
        self._written = 0
        self._tasks: Tasks

    def run(self) -> list[Counts]:
        """Write epochs; return the counts of each hundred."""
        sink: Any = self._place.sink
        sink.position(self._spark)
        self._tasks = Tasks(sink, self._spark)
        self._write(WARM_UP)
        counted = []
        for number in range(0, self._epochs, COUNTED):
            begun = time.monotonic()
            with counting(self._place, COUNTED) as counts:
                self._write(COUNTED)
            seconds = (time.monotonic() - begun) / COUNTED
            print(f"  {number + 1} to {number + COUNTED}: {counts}; {seconds:.2f} s", flush=True)
            counted.append(counts)
        return counted

    def maintain(self) -> Counts:
        """Compact the table, and remove what that replaced; return the requests per epoch."""
        of_sink: Any = getattr(self._place.sink, "_files", self._place.sink)
        maintenance = of_sink.maintenance
        with counting(self._place, self._written) as counts:
            for policy in (MaintenancePolicy(0.0, None), MaintenancePolicy(0.0, 0.0)):
                of_sink._policy, maintenance._every_s = policy, policy.every_s
                self._write(1)
                maintenance.wait()
        return counts

    def _write(self, epochs: int) -> None:
        for epoch in range(self._written + 1, self._written + epochs + 1):
            self._tasks.write(epoch, *of_two_tables(epoch))
        self._written += epochs


@contextmanager
def _in_store(kind: str, epochs: int) -> Iterator[Proof]:
    # Rounds are forced; see Proof.maintain().
    settings = {} if kind == "parquet" else {"compact_every": "never"}
    with s3() as store:
        path = f"{store.path}/out"
        sink = make_sink(path, format=kind, storage_options=store.options, **settings)
        yield Proof(None, Place(store, sink), epochs)


@contextmanager
def _in_catalog(epochs: int) -> Iterator[Proof]:
    find_java()
    with (
        tempfile.TemporaryDirectory() as folder,
        rest_catalog(Path(folder)) as served,
        counted(served) as (catalog, asked),
    ):
        settings = {"format": "iceberg", "catalog": catalog.setting, "compact_every": "never"}
        sink = make_sink(Path(folder, "out"), **settings)
        spark = start_spark(["requests"], "local[2]", catalog.spark_conf, ["iceberg"])
        try:
            yield Proof(spark, Place(served.store, sink, asked), epochs)
        finally:
            stop_spark(spark)


@contextmanager
def _mirrors(epochs: int) -> Iterator[Proof]:
    find_java()
    with s3() as store:
        path = f"{store.path}/mirrors"
        sink = make_sink(path, kind="mirror", format="delta", storage_options=store.options)
        spark = start_spark(["requests"], "local[2]", {}, ())
        try:
            yield Proof(spark, Place(store, sink), epochs)
        finally:
            stop_spark(spark)


def _opened(kind: str, epochs: int) -> AbstractContextManager[Proof]:
    if kind == "iceberg":
        return _in_catalog(epochs)
    return _mirrors(epochs) if kind == "mirror" else _in_store(kind, epochs)


def _failures(kind: str, counted: Sequence[Counts]) -> Iterator[str]:
    first, last = counted[0], counted[-1]
    for counts in (first, last):
        if counts.an_epoch > LIMITS[kind]:
            yield f"{kind}: more than {LIMITS[kind]}: {counts}"
    if abs(last.an_epoch - first.an_epoch) > GROWTH_MAX[kind]:
        yield f"{kind}: not flat: {first}; {last}"
    for heading, kinds in sizing_page.KINDS.items():
        of_kinds = [sum(counts.by_kind[of_api] for of_api in kinds) for counts in counted]
        number = sum(of_kinds) / (len(counted) * COUNTED)
        stated = sizing_page.requests_of_an_epoch()[ON_PAGE[kind]][heading]
        if abs(number - stated) > ROUNDING[kind]:
            yield f"{kind}: docs/sizing.md has {stated} {heading}, and not {number}"


def main() -> int:
    options = parsed_options(__doc__, epochs=1_000, only=list(LIMITS))
    failures: list[str] = []
    for kind in options.only:
        with _opened(kind, options.epochs) as proof:
            print(f"{kind}, after {WARM_UP} epochs:")
            hundreds = proof.run()
            for request, number in sorted(hundreds[-1].by_place.items()):
                print(f"    {number / COUNTED:.2f} {request}")
            if kind in ("delta", "iceberg"):
                print(f"  maintenance of all: {proof.maintain()}", flush=True)
            failures += _failures(kind, hundreds)
    print("\n".join(failures) or "within the limits, and flat")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
