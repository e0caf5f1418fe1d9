"""A stalled partition is opened again, counted, and named while it holds the low watermark back."""

import json
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.state.open_queries import open_queries, stalls
from slackwater.state.plans import latest_plan
from slackwater.testing.compare import compare
from slackwater.timestamp import format_rfc3339
from tests.faults.proxy import FaultProxy, Stalls
from tests.faults.seeded import last_ns, make_sample
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase
from tests.support.epochs import EpochLoop
from tests.support.services import settings

# Until it is shown, however long that takes.
STALLS_MAX = 1_000


@pytest.mark.parametrize("proof", ["ok", pytest.param("record", marks=pytest.mark.long)])
def test_the_partition_that_holds_the_low_watermark_back_is_named(
    proof: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    sample = make_sample(new_database(), Dialect.GOOGLE_STANDARD_SQL)
    with FaultProxy(sample.stream.endpoint.target) as proxy:
        loop = EpochLoop(
            replace(sample.stream, endpoint=plaintext(proxy.host)),
            f"sqlite:///{tmp_path / 'state.db'}",
            start_ns=sample.start_ns,
            options={"proof": proof},
        )
        loop.epoch()
        roots = {p.token for p in loop.store.partitions("orders")}
        stalled = sorted(roots)[0]
        proxy.rules = [Stalls(times=STALLS_MAX, messages_max=0, tokens=frozenset({stalled}))]
        tables: list[Any] = []
        epoch = threading.Thread(target=lambda: tables.append(loop.epoch(end_ns=last_ns(sample))))
        epoch.start()
        # Silent for three heartbeats of a second, and for twice as long when it stalls again.
        shown = wait_for_status(loop, tmp_path, sample.stream)
        proxy.rules = []
        assert shown["partition"] == stalled
        assert shown["seconds"] >= 5
        assert shown["stalls"] >= 1
        epoch.join(180)
        assert not epoch.is_alive()
        assert stalls(loop.store, "orders") == {stalled: proxy.injected["stall"]}
        plan = latest_plan(loop.store, "orders")
        assert plan is not None
        assert open_queries(loop.store, plan.plan_id) == []
        loop.close()
    assert compare(tables[0], sample.truth).is_equal


def wait_for_status(loop: EpochLoop, folder: Path, stream: ChangeStream) -> dict[str, Any]:
    """Return what `slackwater status` shows for the partition that the epoch waits for."""
    config = folder / "slackwater.yaml"
    config.write_text(yaml.safe_dump(settings(stream, folder, format_rfc3339(0))))
    until = time.monotonic() + 240
    while time.monotonic() < until:
        done = slackwater("status", "-c", str(config), "--json")
        assert done.returncode == 0, done.stderr
        shown: dict[str, Any] | None = json.loads(done.stdout)["held_back_by"]
        if shown is not None:
            return shown
        time.sleep(0.2)
    raise AssertionError("no partition was named")
