"""How many lines a service logs in an hour: a healthy one, and one with five stalled partitions.

python -m tests.proofs.log_hour [--minutes 60]

The streams are synthetic, with partitions that split, merge and move every five minutes; in front
of the second service is a proxy in which the queries of five partitions are silent.
"""

import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from slackwater.demo.service import Service
from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.timestamp import format_rfc3339
from tests.faults.proxy import FaultProxy, Stalls
from tests.support.programs import parsed_options
from tests.support.services import settings
from tests.synthetic.script import Script, lineage
from tests.synthetic.server import CHANGE_STREAM, synthetic_process

_PARTITIONS: Final = 20
_STALLED: Final = 5
_CHANGE_EVERY_US: Final = 300_000_000
# Besides one line an epoch; an hour's.
_HEALTHY_MAX: Final = 100
_STALLED_MAX: Final = 200
_EVENT: Final = re.compile(r'event=("[^"]*"|\S+)')
_TOKEN: Final = re.compile(r"[pg]\d{2,}\w*")


def main() -> None:
    """Run both services, print their lines by what they say, and exit with 1 for too many."""
    seconds = parsed_options(__doc__, minutes=60.0).minutes * 60
    with tempfile.TemporaryDirectory() as folder, _both(Path(folder), seconds) as services:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(1)
            for service in services:
                assert not service.has_ended(), service.log.read_text()[-2_000:]
        counts = [_by_event(service.log.read_text()) for service in services]
    limits = (_HEALTHY_MAX, _STALLED_MAX)
    is_over = False
    for name, counted, limit in zip(("healthy", "stalled"), counts, limits, strict=True):
        epochs = counted.pop("epoch", 0)
        total = sum(counted.values())
        is_over |= total >= limit or (not epochs and name == "healthy")
        print(f"{name}: {total} lines (limit {limit}) besides {epochs} epochs")
        for event, count in counted.most_common():
            print(f"  {count:5} {event}")
    sys.exit(is_over)


@contextmanager
def _both(folder: Path, seconds: float) -> Iterator[list[Service]]:
    now_us = time.time_ns() // 1_000
    changes = range(now_us + _CHANGE_EVERY_US, now_us + round(seconds * 1e6), _CHANGE_EVERY_US)
    partitions = lineage(_PARTITIONS, now_us - 60_000_000, list(changes), seed=7)
    script = Script(Dialect.GOOGLE_STANDARD_SQL, tuple(partitions))
    with synthetic_process(script) as host, FaultProxy(host) as proxy:
        silent = frozenset(partition.token for partition in partitions[:_STALLED])
        proxy.rules = [Stalls(times=1_000_000, messages_max=0, tokens=silent)]
        services = [
            _service(host, folder / "healthy", now_us),
            _service(proxy.host, folder / "stalled", now_us),
        ]
        try:
            yield services
        finally:
            for service in services:
                service.kill()


def _service(host: str, folder: Path, now_us: int) -> Service:
    folder.mkdir()
    stream = ChangeStream(
        "test-project", "test", "test-db", CHANGE_STREAM, endpoint=plaintext(host)
    )
    values = settings(stream, folder, format_rfc3339((now_us - 30_000_000) * 1_000))
    # As many as a service has that nobody has tuned.
    del values["epoch"]
    service = Service(values, folder, os.environ | {"SPANNER_EMULATOR_HOST": host})
    service.start()
    return service


def _by_event(log: str) -> Counter[str]:
    """Return the number of lines by what they say; a line in another form counts by its text."""
    events = (
        match[1].strip('"') if (match := _EVENT.search(line)) else line for line in log.splitlines()
    )
    return Counter(_TOKEN.sub("TOKEN", event)[:100] for event in events)


if __name__ == "__main__":
    main()
