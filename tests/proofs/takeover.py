"""Two services on one pipeline: when the owner dies, the other one takes over.

`python -m tests.proofs.takeover` measures from kill -9 until the standby has read everything up to
it.
"""

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.store import Store
from slackwater.state.tables import pipelines
from slackwater.testing.compare import read_changelog
from slackwater.timestamp import format_rfc3339
from tests.support.emulators import own_database
from tests.support.freezing import Frozen
from tests.support.programs import parsed_options
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of
from tests.support.waiting import wait_until

TRANSACTIONS_PER_SECOND = 20
# A standby that has just started is not warm yet.
STANDING_BY_S = 15.0
ELSEWHERE = "elsewhere pid 1 (another-machine 00000000)"


class Pair:
    """Two services on one pipeline, under load."""

    def __init__(self, stream: ChangeStream, folder: Path, **lease: Any) -> None:
        self.stream = stream
        self.folder = folder
        self.connection = Connection(stream)
        self.start_ns = self.connection.strong_read_timestamp_ns()
        pipeline_settings = settings(stream, folder, format_rfc3339(self.start_ns)) | {
            "lease": lease
        }
        self.first = Service(pipeline_settings, folder / "first", os.environ)
        self.second = Service(pipeline_settings, folder / "second", os.environ)
        self._stop = threading.Event()
        self._writer = threading.Thread(target=self._write)

    def begin(self) -> None:
        """Start both services: the first reads, the second stands by."""
        self.first.start()
        self.first.wait_for_watermark(self.start_ns, seconds_max=60)
        self.second.start()
        self._writer.start()
        wait_for(self.second, "standing by", seconds_max=60)

    def _write(self) -> None:
        Load(self.stream, Dialect.GOOGLE_STANDARD_SQL, seed=8).run(
            transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=120, stop=self._stop
        )

    def kill_first(self, *, elsewhere: bool = False) -> float:
        """Kill the owner; return the seconds until the standby has read what was committed before.

        Args:
            elsewhere: treat the owner as a process of another machine, whose death shows only when
                its lease expires.
        """
        killed_ns = self.connection.strong_read_timestamp_ns()
        killed_at = time.monotonic()
        if elsewhere:
            # Frozen before it is renamed, or it would notice and leave in good order.
            self.freeze()
            store = Store.open(f"sqlite:///{self.folder / 'state.db'}", migrate=False)
            store.write(lambda c: c.execute(sa.update(pipelines).values(owner=ELSEWHERE)))
            store.close()
        self.first.kill()
        self.second.wait_for_watermark(killed_ns, seconds_max=60)
        return time.monotonic() - killed_at

    def freeze(self) -> Frozen:
        """Freeze the first owner."""
        return Frozen(self.first, f"sqlite:///{self.folder / 'state.db'}")

    def end(self, service: Service) -> None:
        """End the load, let the service catch up and drain, and require the truth in its output."""
        self._stop.set()
        self._writer.join()
        end_ns = self.connection.strong_read_timestamp_ns()
        service.wait_for_watermark(end_ns, seconds_max=90)
        assert service.drain() == 0
        truth = truth_of(self.stream, self.start_ns, end_ns)
        output = read_changelog(self.folder / "changes")
        require_equal(output, truth)


def wait_for(service: Service, text: str, *, seconds_max: float) -> None:
    read = service.log.read_text
    wait_until(lambda: text in read(), lambda: read()[-2_000:], seconds_max=seconds_max)


def _measure(folder: Path, *, elsewhere: bool) -> float:
    with own_database() as stream:
        pair = Pair(stream, folder)
        pair.begin()
        time.sleep(STANDING_BY_S)
        seconds = pair.kill_first(elsewhere=elsewhere)
        pair.end(pair.second)
    return seconds


def main() -> None:
    """Measure with the default lease, and print the result."""
    rounds = parsed_options(__doc__, rounds=3).rounds
    for name, elsewhere in (("another machine's", True), ("this machine's", False)):
        failures = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                failures.append(_measure(Path(folder), elsewhere=elsewhere))
        print(
            f"{name} owner killed: the standby has read up to it after"
            f" {statistics.median(failures):.1f} s (worst {max(failures):.1f} s)"
        )


if __name__ == "__main__":
    main()
