"""Thousands of connections that are slow, idle, huge or malformed, to a pipeline's HTTP server.

`python -m tests.proofs.http_attack` runs a pipeline with 1,024 descriptors, under attack and
without, in turn. Epochs go on at their pace, probes are answered, SIGTERM ends it, the output is
right, and the log stays short. The attackers connect again as soon as they are sent away.
"""

from __future__ import annotations

import argparse
import http.client
import os
import random
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.epochs import last_epochs
from slackwater.state.store import Store
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import own_database
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

DESCRIPTORS: Final = 1_024
ROUNDS: Final = 5
CALM_S: Final = 30.0
RATIO_MAX: Final = 1.3
LINES_MAX: Final = 100
# Kubernetes' default for the chart's probes.
PROBE_S_MAX: Final = 5.0
DRIP_S: Final = 0.5
LINE: Final = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
HUGE: Final = (
    b"GET /",
    LINE + b"X: ",
    b"POST /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000000000\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
    # Many answers of which none is read.
    b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000,
)
MALFORMED: Final = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
    b"GET\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    LINE + b"Content-Length: -1\r\n\r\n",
    LINE + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
    LINE + b"Host: another\r\n\r\n",
    LINE + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    LINE + b"\x00: \x1b[31m\r\n\r\n",
    b"GET /api/pipelines/orders/epochs?limit=" + b"9" * 5_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
)
MUCH: Final = b"x" * 65_536


@dataclass
class Attacker:
    """One connection after the other, all of one kind."""

    kind: str
    number: int
    port: int
    connection: socket.socket = field(init=False)
    first: bytes = b""

    def connect(self) -> None:
        self.connection = socket.socket()
        self.connection.setblocking(False)
        self.connection.connect_ex(("127.0.0.1", self.port))
        match self.kind:
            case "idle":
                self.first = b""
            case "slow":
                self.first = (LINE + b"X-Slow: ")[: self.number % 60 + 1]
            case "huge":
                self.first = HUGE[self.number % len(HUGE)]
            case _:
                noise = random.randbytes(self.number % 300)
                self.first = (*MALFORMED, noise)[self.number % (len(MALFORMED) + 1)]

    @property
    def is_lazy(self) -> bool:
        """Whether it takes no answer."""
        return self.kind == "huge" and self.number % len(HUGE) == len(HUGE) - 1

    @property
    def events(self) -> int:
        if self.is_lazy:
            return select.EPOLLOUT if self.first else 0
        wants_to_send = bool(self.first) or self.kind == "huge"
        return select.EPOLLIN | (select.EPOLLOUT if wants_to_send else 0)

    def act(self, event: int) -> bool:
        """Do what the kind does; return whether the connection is still open."""
        try:
            if event & select.EPOLLOUT:
                if self.first:
                    self.first = self.first[self.connection.send(self.first) :]
                elif self.kind == "huge" and not self.is_lazy:
                    self.connection.send(MUCH)
            if event & select.EPOLLIN:
                return bool(self.connection.recv(65_536))
        except BlockingIOError:
            return True
        except OSError:
            return False
        return not event & (select.EPOLLHUP | select.EPOLLERR)

    def drip(self) -> None:
        if self.kind == "slow" and not self.first:
            with suppress(OSError):
                self.connection.send(b"x")


def attack(port: int, connections: int) -> None:
    """Keep so many connections open, or asked for, until SIGTERM; print how many there were."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    poll, by_number = select.epoll(), dict[int, Attacker]()
    opened = 0

    def connect(attacker: Attacker) -> None:
        nonlocal opened
        attacker.connect()
        by_number[attacker.connection.fileno()] = attacker
        poll.register(attacker.connection, attacker.events)
        opened += 1

    kinds = ("idle", "slow", "huge", "malformed")
    for number in range(connections):
        connect(Attacker(kinds[number % len(kinds)], number // len(kinds), port))
    ended: list[int] = []
    signal.signal(signal.SIGTERM, lambda *_: ended.append(1))
    due_s = time.monotonic()
    while not ended:
        for number, event in poll.poll(DRIP_S):
            attacker = by_number[number]
            if attacker.act(event):
                poll.modify(number, attacker.events)
                continue
            poll.unregister(number)
            del by_number[number]
            attacker.connection.close()
            connect(attacker)
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + DRIP_S
            for attacker in by_number.values():
                attacker.drip()
    print(opened, flush=True)


@contextmanager
def attacked(port: int, connections: int) -> Iterator[list[str]]:
    """Attack while the context is open, from a process with descriptors of its own."""
    command = [sys.executable, "-m", "tests.proofs.http_attack", "--port", str(port)]
    command += ["--connections", str(connections)]
    said: list[str] = []
    process = subprocess.Popen(
        # What the attackers compute is not what is measured.
        ["nice", "-n", "19", *command],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield said
    finally:
        process.terminate()
        said.append(process.communicate(timeout=60)[0].strip())


@contextmanager
def probing(port: int) -> Iterator[list[float]]:
    """Ask for readiness each second, as Kubernetes does; collect how long the answers took."""
    took: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.wait(1):
            begun = time.monotonic()
            probe = http.client.HTTPConnection("127.0.0.1", port, timeout=PROBE_S_MAX)
            try:
                probe.request("GET", "/readyz")
                is_ready = probe.getresponse().status == 200
            except OSError:
                is_ready = False
            finally:
                probe.close()
            took.append(time.monotonic() - begun if is_ready else float("inf"))

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield took
    finally:
        ended.set()
        thread.join()


@dataclass(frozen=True)
class Pace:
    """What a pipeline did in some time: its epochs, and the CPU time of its own process."""

    epochs: int = 0
    cpu_s: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: Pace) -> Pace:
        return Pace(
            self.epochs + other.epochs, self.cpu_s + other.cpu_s, self.seconds + other.seconds
        )

    @property
    def epochs_a_second(self) -> float:
        return self.epochs / self.seconds

    def __str__(self) -> str:
        share = 100 * self.cpu_s / self.seconds
        return f"{self.epochs_a_second:.2f} a second, with {share:.0f} % of a core"


@dataclass
class Trial:
    """One pipeline under load, and what is measured of it."""

    stream: ChangeStream
    folder: Path
    seconds: float
    connections: int

    def run(self) -> bool:
        """Measure, print the figures, and return whether they are as they have to be.

        Raises:
            AssertionError: the output differs from the truth.
        """
        connection = Connection(self.stream)
        start_ns = connection.strong_read_timestamp_ns()
        values = settings(self.stream, self.folder, format_rfc3339(start_ns))
        values["http"] = {"listen": "127.0.0.1:0"}
        service = Service(values, self.folder, os.environ)
        service.start()
        resource.prlimit(service.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        service.wait_for_watermark(start_ns, seconds_max=240)
        stop = threading.Event()
        writer = threading.Thread(target=self._write, args=(stop,))
        writer.start()
        try:
            is_good = self._measure(service)
        finally:
            stop.set()
            writer.join()
        end_ns = connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=240)
        port = _port(service)
        with attacked(port, self.connections):
            time.sleep(10)
            begun = time.monotonic()
            assert service.drain() == 0
            print(f"SIGTERM under attack: ended after {time.monotonic() - begun:.1f} s")
        connection.close()
        truth = truth_of(self.stream, start_ns, end_ns)
        output = read_changelog(self.folder / "changes")
        require_equal(output, truth)
        print(f"{output.num_rows} records equal")
        return is_good

    def _measure(self, service: Service) -> bool:
        port = _port(service)
        # Spark gets quicker in its first minute.
        time.sleep(60)
        calm, under_attack = Pace(), Pace()
        opened, descriptors, took = 0, 0, list[float]()
        lines_before = len(_lines(service))
        # In turn, because whatever else runs here, and the emulator's age, change the pace too.
        for _ in range(ROUNDS):
            calm += self._pace(service, CALM_S)
            with attacked(port, self.connections) as said, probing(port) as took_now:
                under_attack += self._pace(service, self.seconds / ROUNDS)
                descriptors = max(descriptors, len(os.listdir(f"/proc/{service.pid}/fd")))
            opened += int(said[0])
            took += took_now
        lines = _lines(service)[lines_before:]
        ratio = calm.epochs_a_second / max(under_attack.epochs_a_second, 1e-9)
        answered = [seconds for seconds in took if seconds < PROBE_S_MAX]
        print(
            f"{self.connections} connections for {self.seconds:.0f} s, {opened} one after the"
            f" other\nepochs: {under_attack} under attack, {calm} without; ratio {ratio:.2f}\n"
            f"{len(lines)} log lines beside those of epochs; {descriptors} descriptors\n"
            f"{len(answered)} of {len(took)} probes were answered within {PROBE_S_MAX:.0f} s,"
            f" half of them within {1_000 * sorted(took)[len(took) // 2]:.0f} ms"
        )
        print("\n".join(lines[:20]))
        return ratio < RATIO_MAX and len(lines) < LINES_MAX

    def _pace(self, service: Service, seconds: float) -> Pace:
        """Wait for some time, and return what the pipeline did in it."""
        process = psutil.Process(service.pid)
        begun_ns, cpu_s = time.time_ns(), sum(process.cpu_times()[:2])
        time.sleep(seconds)
        ended_ns, cpu_s = time.time_ns(), sum(process.cpu_times()[:2]) - cpu_s
        store = Store.open(f"sqlite:///{self.folder / 'state.db'}", migrate=False)
        try:
            epochs = last_epochs(store, "orders", limit=10_000)
        finally:
            store.close()
        count = sum(begun_ns <= epoch.committed_at_ns < ended_ns for epoch in epochs)
        return Pace(count, cpu_s, (ended_ns - begun_ns) / 1e9)

    def _write(self, stop: threading.Event) -> None:
        load = Load(self.stream, Dialect.GOOGLE_STANDARD_SQL, seed=1)
        load.run(transactions_per_second=20, seconds=3_600, stop=stop)


def _port(service: Service) -> int:
    return int(re.findall(r"http://127\.0\.0\.1:(\d+)", service.log.read_text())[-1])


def _lines(service: Service) -> list[str]:
    lines = service.log.read_text(errors="replace").splitlines()
    return [line for line in lines if " event=epoch " not in line]


def main() -> int:
    """Attack, or measure a pipeline under attack."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--connections", type=int, default=5_000)
    parser.add_argument("--port", type=int, help="attack this port only, until SIGTERM")
    options = parser.parse_args()
    if options.port is not None:
        attack(options.port, options.connections)
        return 0
    with own_database() as stream, tempfile.TemporaryDirectory() as folder:
        trial = Trial(stream, Path(folder), options.seconds, options.connections)
        return 0 if trial.run() else 1


if __name__ == "__main__":
    sys.exit(main())
