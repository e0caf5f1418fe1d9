"""The service behind a proxy that answers with any gRPC code, for hours, held against the truth.

`python -m tests.faults.codes --minutes 120` takes turns between the dialects. Each turn has an
emulator of its own, because reading its history costs the emulator more the longer it has run.
"""

import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slackwater.demo.load import Load
from slackwater.demo.service import Service
from slackwater.errors import PipelineFailedError
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.state.errors import StateError
from slackwater.state.models import PipelineState
from slackwater.state.store import Store
from slackwater.testing.compare import compare, read_changelog
from slackwater.timestamp import format_rfc3339
from tests.faults.proxy import Breaks, Delays, FaultProxy, HideEnds, Rule
from tests.faults.statuses import REFUSALS, RESETS
from tests.support.emulators import own_database
from tests.support.programs import parsed_options
from tests.support.services import settings
from tests.support.truths import require_equal, truth_of

TRANSACTIONS_PER_SECOND: Final = 10
CHURN_SECONDS: Final = 5
# Three heartbeats without an answer are a stall: the emulator on a busy machine takes a while.
HEARTBEAT: Final = "5s"
TURN_MINUTES: Final = 15.0
_LOOK_S: Final = 1.0
_CATCH_UP_SECONDS_MAX: Final = 600.0
_STARTS_MAX: Final = 20
# Few refusals: each costs a start of Spark's query, and a delay that grows from failure to failure.
RULES: Final[Sequence[Rule]] = (
    Breaks(0.2, messages_max=4, unary_likely=0.2, refusals=0.06),
    Delays(0.05),
    HideEnds(margin_ns=10**8),
)


@dataclass(frozen=True, slots=True)
class Turn:
    """The result of one turn: what was injected, and how many records were equal."""

    injected: Counter[str]
    failures: int
    records: int


def run(stream: ChangeStream, dialect: Dialect, folder: Path, minutes: float, seed: int) -> Turn:
    """Run the service under load behind the proxy, and compare its output with the truth.

    Raises:
        AssertionError: the output differs from the truth, or the pipeline failed for good.
    """
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    stop = threading.Event()
    # Where ends are hidden, records may come late with ok.
    proof = ("ok", "record")[seed % 2]
    with FaultProxy(stream.endpoint.target, RULES, seed=seed) as proxy:
        pipeline_settings = settings(stream, folder, format_rfc3339(start_ns))
        pipeline_settings["epoch"]["heartbeat"] = HEARTBEAT
        pipeline_settings["epoch"]["proof"] = proof
        environ = {**os.environ, "SPANNER_EMULATOR_HOST": proxy.host}
        service = Service(pipeline_settings, folder, environ)
        writer = threading.Thread(target=_write, args=(stream, dialect, seed, minutes, stop))
        _start(service, start_ns)
        writer.start()
        try:
            _watch(pipeline_settings["state"]["url"], writer)
            end_ns = connection.strong_read_timestamp_ns()
            service.wait_for_watermark(end_ns, seconds_max=_CATCH_UP_SECONDS_MAX)
            # What the last cut with records hid comes with the next epoch.
            next_ns = (service.low_watermark_ns() or 0) + 1
            service.wait_for_watermark(next_ns, seconds_max=_CATCH_UP_SECONDS_MAX)
            proxy.rules = []
            assert service.drain() == 0
        finally:
            stop.set()
            service.kill()
            writer.join()
    connection.close()
    output = read_changelog(folder / "changes")
    truth = truth_of(stream, start_ns, end_ns, dialect)
    if proof == "record":
        require_equal(output, truth)
    else:
        comparison = compare(output, truth.records)
        assert comparison.is_equal, comparison
    failures = service.log.read_text(errors="replace").count("failed, will try again")
    return Turn(proxy.injected, failures, output.num_rows)


def _start(service: Service, start_ns: int) -> None:
    """Start the service, again if its first question to Spanner is refused, as Kubernetes does.

    Raises:
        AssertionError: the service ended for another reason.
        TimeoutExpired: it is stuck.
    """
    for _ in range(_STARTS_MAX):
        service.start()
        try:
            service.wait_for_watermark(start_ns, seconds_max=_CATCH_UP_SECONDS_MAX)
        except PipelineFailedError:
            assert service.wait(seconds_max=1) in (1, 2)
            assert "Spanner answered" in service.log.read_text(errors="replace")
        else:
            return
    raise AssertionError(f"Spanner refused {_STARTS_MAX} starts")


def _write(
    stream: ChangeStream, dialect: Dialect, seed: int, minutes: float, stop: threading.Event
) -> None:
    load = Load(stream, dialect, seed=seed)
    load.run(transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=60 * minutes, stop=stop)


def _watch(state_url: str, writer: threading.Thread) -> None:
    """Check, as long as the load runs, that the pipeline has not failed for good."""
    while writer.is_alive():
        writer.join(_LOOK_S)
        try:
            store = Store.open(state_url, migrate=False)
        except StateError:
            # The service has not created it yet.
            continue
        pipeline = store.pipeline("orders")
        store.close()
        if pipeline is not None:
            assert pipeline.state is not PipelineState.FAILED_PERMANENTLY, pipeline.state_reason


def main() -> int:
    """Run as long as asked, and print what was injected; 1 if a code was never injected."""
    options = parsed_options(__doc__, minutes=120.0, turn=TURN_MINUTES, seed=1)
    injected: Counter[str] = Counter()
    began = time.monotonic()
    failures = records = turns = 0
    while turns * options.turn < options.minutes:
        minutes = min(options.turn, options.minutes - turns * options.turn)
        dialect = list(Dialect)[turns % 2]
        # The two dialects have the same seed in turn, and two turns of a dialect another proof.
        seed = options.seed + turns // 2
        # It stays if the turn fails, with the service's log.
        folder = Path(tempfile.mkdtemp(prefix="codes-"))
        print(f"{dialect}, seed {seed}: {folder}", flush=True)
        with own_database(dialect, partition_alive_seconds=CHURN_SECONDS) as stream:
            turn = run(stream, dialect, folder, minutes, seed)
        shutil.rmtree(folder)
        turns += 1
        injected += turn.injected
        failures, records = failures + turn.failures, records + turn.records
        print(
            f"{dialect}, seed {seed}: {minutes:.0f} minutes, {turn.records} records equal,"
            f" {turn.failures} failures, {dict(sorted(turn.injected.items()))}",
            flush=True,
        )
    missing = {status.kind for status in (*RESETS, *REFUSALS)} - injected.keys()
    print(
        f"{time.monotonic() - began:.0f} s: {records} records equal, {failures} failures, none"
        f" permanent, {dict(sorted(injected.items()))}, never injected: {sorted(missing) or 'none'}"
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
