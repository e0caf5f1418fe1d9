"""Kills, and owners that freeze, at chosen requests to an object store; the output is the truth.

A request is chosen by its kind: a commit, a file, a line of the watermark log.
It is lost, or answered to nobody, or arrives when a successor has committed more epochs. A reader
looks all the time. The formats are those of changelogs, and `mirror` and `iceberg_mirror` for
mirrors in Delta and in Iceberg's REST catalog.
`python -m tests.proofs.object_kills --rounds 6 --kills 5 --freezes 5 --format json --store gs`
"""

import argparse
import itertools
import os
import queue
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.timestamp import format_rfc3339
from tests.outputs import OUTPUTS
from tests.outputs.output import Moment, Output, Place, Reader
from tests.support.emulators import own_database
from tests.support.freezing import Frozen
from tests.support.object_stores import STORES, ServedStore, nothing
from tests.support.programs import parsed_options
from tests.support.services import settings

_WAIT_S_MAX: Final = 600
# A kind of request that is rare may not come: nothing is merged or removed in a young output.
_MOMENT_S_MAX: Final = 30
_LEASE: Final = {"duration": "6s"}
# Of JVMs that are killed soon.
_OF_SHORT_LIVES: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class DroppedError(Exception):
    """A request that never arrives."""


@dataclass
class Trap:
    """Does something at the next request of a kind."""

    store: ServedStore
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def spring(self, moment: Moment, action: Callable[[], None]) -> bool:
        """Call an action before the next such request is answered; return whether there was one."""
        sprung = threading.Event()

        def before(method: str, name: str) -> None:
            if method != moment[0] or moment[1] not in name:
                return
            with self._lock:
                if self.store.before is not before:
                    return
                self.store.before = nothing
                sprung.set()
            action()

        self.store.before = before
        if sprung.wait(_MOMENT_S_MAX):
            return True
        with self._lock:
            self.store.before = nothing
        return sprung.is_set()


@dataclass
class Run:
    """One pipeline on an object store, under load."""

    stream: ChangeStream
    folder: Path
    output: Output
    choose: random.Random
    done: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._connection = Connection(self.stream)
        self.start_ns = self._connection.strong_read_timestamp_ns()
        values: dict[str, Any] = settings(self.stream, self.folder, format_rfc3339(self.start_ns))
        values |= {"sink": dict(self.output.sink()), "lease": _LEASE}
        values["spark"]["conf"] = dict(self.output.spark_conf())
        self._values = values
        self._services = 0
        self._trap = Trap(self.output.store)
        self.service = self._new_service()

    def _new_service(self) -> Service:
        """Return a service as on another machine: with a folder for temporary files of its own."""
        self._services += 1
        folder = self.folder / f"service-{self._services}"
        (folder / "tmp").mkdir(parents=True)
        environ = {"JDK_JAVA_OPTIONS": _OF_SHORT_LIVES, **os.environ, "TMPDIR": str(folder / "tmp")}
        return Service(self._values, folder, environ)

    def kill(self, moment: Moment) -> bool:
        """Kill the service at a request, and start it again, or another one.

        Returns:
            False if there was no such request.
        """
        is_lost = self.choose.random() < 0.5

        def kill() -> None:
            self.service.kill()
            if is_lost:
                raise DroppedError

        if not self._trap.spring(moment, kill):
            return False
        # Its answer is on its way to nobody.
        while psutil.pid_exists(self.service.pid):
            time.sleep(0.05)
        reached_ns = self.service.low_watermark_ns() or 0
        if self.choose.random() < 0.5:
            self.service = self._new_service()
        self.service.start()
        self.service.wait_for_watermark(reached_ns + 1, seconds_max=_WAIT_S_MAX)
        self.done[f"killed at {' '.join(moment)}"] += 1
        return True

    def freeze(self, moment: Moment) -> bool:
        """Freeze the service at a request that arrives after its successor's next epochs.

        Returns:
            False if there was no such request.
        """
        released, made = threading.Event(), queue.SimpleQueue[Frozen]()
        former = self.service

        def freeze() -> None:
            made.put(Frozen(former, self._values["state"]["url"]))
            assert released.wait(2 * _WAIT_S_MAX)

        if not self._trap.spring(moment, freeze):
            return False
        frozen = made.get(timeout=_WAIT_S_MAX)
        reached_ns = former.low_watermark_ns() or 0
        self.service = self._new_service()
        self.service.start()
        for _ in range(3):
            self.service.wait_for_watermark(reached_ns + 1, seconds_max=_WAIT_S_MAX)
            reached_ns = self.service.low_watermark_ns() or 0
        released.set()
        frozen.thaw()
        for _ in range(3):
            self.service.wait_for_watermark(reached_ns + 1, seconds_max=_WAIT_S_MAX)
            reached_ns = self.service.low_watermark_ns() or 0
        former.kill()
        self.done[f"frozen at {' '.join(moment)}"] += 1
        return True

    def _do(self, step: Callable[[Moment], bool], moments: Iterator[Moment]) -> None:
        """Do a step at the next moment that there is: some are rare."""
        for moment in itertools.islice(moments, len(self.output.moments)):
            if step(moment):
                return
            self.done[f"not seen: {' '.join(moment)}"] += 1
        raise AssertionError(f"none of these requests came: {self.output.moments}")

    def run(self, kills: int, freezes: int) -> int:
        """Kill and freeze, let the service catch up, and return how many records equal the truth.

        Raises:
            AssertionError: the output differs from the truth, or a reader saw half an epoch.
        """
        stop = threading.Event()
        seed = self.choose.randrange(1_000)
        writer = threading.Thread(target=self.output.write, args=(self.stream, seed, stop))
        reader = Reader(self.output, self.stream)
        moments = itertools.cycle(self.output.moments)
        self.service.start()
        self.service.wait_for_watermark(self.start_ns, seconds_max=_WAIT_S_MAX)
        writer.start()
        try:
            with reader.reading():
                steps = [self.kill] * kills + [self.freeze] * freezes
                self.choose.shuffle(steps)
                for number, step in enumerate(steps):
                    self._do(step, moments)
                    print(f"{number + 1}: {dict(self.done)}", file=sys.stderr, flush=True)
                stop.set()
                writer.join()
                end_ns = self._connection.strong_read_timestamp_ns()
                self.service.wait_for_watermark(end_ns, seconds_max=_WAIT_S_MAX)
                assert self.service.drain() == 0, self.service.log.read_text()[-3_000:]
        finally:
            stop.set()
            self.service.kill()
        self._connection.close()
        assert not reader.failures, reader.failures
        assert reader.looks > 0
        return self.output.require_equal(self.stream, self.start_ns, end_ns)


def prove(options: argparse.Namespace, seed: int) -> str:
    """Kill and freeze a pipeline of a new database, and return what was done and found."""
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        place = Place(options.store, options.format, folder, options.dialect)
        output = stack.enter_context(OUTPUTS[options.format](place))
        database = options.dialect, output.statements(), output.change_stream
        stream = stack.enter_context(own_database(*database))
        run = Run(stream, folder, output, random.Random(seed))
        records = run.run(options.kills, options.freezes)
    done, took_s = dict(run.done), time.monotonic() - began
    return (
        f"{options.store}, {options.format}, {options.dialect}, seed {seed}: {done},"
        f" {records} equal, {took_s:.0f} s"
    )


def main() -> None:
    """Kill and freeze as often as asked, and print the results."""
    # An emulator of half an hour takes minutes for an epoch: each round has a new one.
    options = parsed_options(
        __doc__,
        rounds=6,
        kills=5,
        freezes=5,
        format=("parquet", *OUTPUTS),
        store=("s3", *STORES),
        dialect=Dialect.GOOGLE_STANDARD_SQL,
        seed=1,
    )
    for seed in range(options.seed, options.seed + options.rounds):
        print(prove(options, seed), flush=True)


if __name__ == "__main__":
    main()
