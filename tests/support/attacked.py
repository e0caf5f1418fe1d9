"""A running pipeline that is attacked, and what a look at this machine shows of it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.transport.connection import Connection
from tests.support.clusters import Cluster
from tests.support.running_processes import running

SECONDS_MAX = 300


@dataclass
class Pipeline:
    """A running pipeline with secrets in its settings.

    Attributes:
        folder: has all of its files.
        tmp: its folder for temporary files, where everybody may make some.
        cluster: of Spark; None if the pipeline is on one machine.
    """

    service: Service
    folder: Path
    tmp: Path
    load: Load
    connection: Connection
    cluster: Cluster | None

    def processes(self) -> list[psutil.Process]:
        """Return all that run for it, with the cluster's."""
        return [process for process in running() if self._is_its(process)]

    def _is_its(self, process: psutil.Process) -> bool:
        with suppress(psutil.Error):
            return process.environ().get("TMPDIR") == str(self.tmp)
        return False

    def listening(self, program: str = "") -> list[tuple[str, int]]:
        """Return the addresses at which its processes listen."""
        addresses: set[tuple[str, int]] = set()
        for process in self.processes():
            # Some end meanwhile.
            with suppress(psutil.NoSuchProcess):
                if program in process.name():
                    addresses.update(_listening(process))
        return sorted(addresses)

    def java(self) -> set[int]:
        """Return the JVMs among its processes."""
        return {process.pid for process in self.processes() if _is_java(process)}

    def ports(self, program: str = "") -> list[int]:
        """Return their ports."""
        return [port for _, port in self.listening(program)]

    def goes_on(self) -> None:
        """Wait for an epoch with records that are written now."""
        self.load.run(transactions_per_second=20, seconds=0.3)
        now_ns = self.connection.strong_read_timestamp_ns()
        self.service.wait_for_watermark(now_ns, seconds_max=SECONDS_MAX)

    @property
    def address(self) -> str:
        """That of its page, once it serves it."""
        serving = re.search(r"address=http://(\S+)", self.service.log.read_text())
        assert serving is not None
        return serving[1]


def _is_java(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return "java" in process.name()
    return False


def _listening(process: psutil.Process) -> Iterator[tuple[str, int]]:
    for connection in process.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            yield connection.laddr.ip.removeprefix("::ffff:"), connection.laddr.port
