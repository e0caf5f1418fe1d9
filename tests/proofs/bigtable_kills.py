"""Kill -9 and frozen owners while a pipeline reads a table of Bigtable's: each change lands once.

A synthetic Bigtable makes changes in real time: large and late ones, of two clusters, in partitions
that split and merge, over calls that break. The output, read by a library that did not write it, is
compared with its history: in Kafka the listed cells, elsewhere all of each change.
`python -m tests.proofs.bigtable_kills --kills 10 --freezes 3 --format parquet`
"""

import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message

from slackwater.timestamp import format_rfc3339, us_to_ns
from tests.support.bigtable_columns import COLUMNS, listed_in, shown_in
from tests.support.bigtable_rows import (
    as_row,
    require_in_order,
    require_once,
    require_same,
    rows_in_order,
)
from tests.support.kafka_broker import Broker, read_topics, spark_conf
from tests.support.killed_pair import KilledPair
from tests.support.programs import parsed_options
from tests.synthetic.bigtable.faults import Fault, Faults
from tests.synthetic.bigtable.history import Change, Shape, generate
from tests.synthetic.bigtable.server import bigtable_process, now_us

KAFKA: Final = "kafka"
_TOPIC: Final = "changes"
# A kill and the way back take so long on a machine with little else to do, a freeze somewhat more.
_FAULT_S: Final = 20
_FIRST_START_S: Final = 60
# From a change's arrival, or the end of a stall, until an epoch that is sure to hold it.
_SETTLED_US: Final = 15_000_000
_SILENCE_US: Final = 20_000_000


@dataclass
class Run:
    """One pipeline over one history.

    Args:
        folder: for everything that the pipeline writes.
        file_format: of the output, or kafka.
        seed: of the history, of the calls that break, and of the moments.
    """

    folder: Path
    file_format: str
    seed: int

    def run(self, kills: int, freezes: int) -> str:
        """Kill and freeze, let the pipeline catch up, compare, and return what was done and found.

        Raises:
            AssertionError: a change is missing, doubled or out of order.
        """
        shape = Shape(
            start_us=now_us(),
            seconds=_FIRST_START_S + _FAULT_S * (kills + freezes),
            tablets=6,
            changes_per_s=60,
            churn_per_s=0.3,
            clusters=2,
            rows=200,
            large=0.03,
            stalls=2,
        )
        history = generate(self.seed, shape)
        faults = Faults(self.seed, 0.1, kinds=(Fault.BREAK, *Fault), silence_us=_SILENCE_US)
        choose = random.Random(self.seed)

        def wait() -> None:
            time.sleep(choose.uniform(0, 4))

        def wait_to_kill(number: int) -> str:
            wait()
            return "while rows change" if now_us() < shape.end_us else "after the last change"

        with ExitStack() as stack:
            host = stack.enter_context(
                bigtable_process(partial(generate, self.seed, shape), faults)
            )
            settings = self._settings(shape.start_us)
            if self.file_format == KAFKA:
                broker = Broker(self.folder)
                stack.callback(broker.kill)
                broker.start()
                _send_to(broker, settings)
            pair = KilledPair(settings, self.folder, {"BIGTABLE_EMULATOR_HOST": host})
            try:
                pair.start(us_to_ns(shape.start_us))
                pair.disturb(kills, freezes, wait_to_kill, wait)
                last_us = max(shape.end_us, *(stall.until_us for stall in history.stalls))
                time.sleep(max(0, (last_us - now_us()) / 1e6))
                pair.drain(us_to_ns(last_us + _SETTLED_US))
            finally:
                pair.kill_all()
            if self.file_format == KAFKA:
                sent = read_topics(broker.host, _TOPIC).values()
                return f"{dict(pair.done)}; {_require_sent_once(sent, history.changes)}"
        rows = rows_in_order(self.file_format, self.folder / "changes")
        require_once(list(map(as_row, rows)), history.changes)
        partitions, epochs = (len({r[n] for r in rows}) for n in ("partition", "low_watermark"))
        done = f"{len(rows)} changes in {partitions} partitions and {epochs} epochs"
        return f"{dict(pair.done)}; {done}, each once and in order"

    def _settings(self, start_us: int) -> dict[str, Any]:
        return {
            "pipeline": "changes",
            "source": {
                "kind": "bigtable",
                "project": "project",
                "instance": "instance",
                "table": "table",
                "start": format_rfc3339(us_to_ns(start_us)),
            },
            "sink": {
                "format": self.file_format,
                "path": str(self.folder / "changes"),
                "checkpoint": str(self.folder / "checkpoint"),
            },
            "state": {"url": f"sqlite:///{self.folder / 'state.db'}"},
            "spark": {"master": "local[2,4]"},
            "lease": {"duration": "4s", "when_taken": "wait"},
        }


def _send_to(broker: Broker, settings: dict[str, Any]) -> None:
    settings["source"]["columns"] = COLUMNS
    settings["spark"]["conf"] = spark_conf()
    settings["sink"] = {
        "kind": "kafka",
        "format": "json",
        "envelope": "flat",
        "topic": _TOPIC,
        "shards": 1,
        "options": {"kafka.bootstrap.servers": broker.host},
        "checkpoint": settings["sink"]["checkpoint"],
    }


def _require_sent_once(partitions: Iterable[Sequence[Message]], changes: Iterable[Change]) -> str:
    """Return what was sent, if it is each change once, and those of each row in commit order.

    Raises:
        AssertionError: it is not.
    """
    values = [json.loads(m.value() or "") for messages in partitions for m in messages]
    sent = list(map(shown_in, values))
    seen = Counter(sent)
    require_same(seen, Counter(map(listed_in, changes)))
    clusters = (value["server_transaction_id"].split("-", 2)[2] for value in values)
    require_in_order(
        ((listed.row_key, cluster), listed.commit_us)
        for listed, cluster in zip(sent, clusters, strict=True)
    )
    return f"{seen.total()} messages, each once and in order"


def main() -> int:
    """Kill and freeze as often as asked, and print the result."""
    options = parsed_options(
        __doc__, kills=10, freezes=3, format=("parquet", "orc", "delta", "iceberg", KAFKA), seed=1
    )
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder), options.format, options.seed)
        done = run.run(options.kills, options.freezes)
    took_s = time.monotonic() - began
    print(f"{options.format}, seed {options.seed}: {done}, {took_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
