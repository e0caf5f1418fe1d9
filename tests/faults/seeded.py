"""Seeded runs of the real reader and scheduler through the fault proxy, held against the truth.

`python -m tests.faults.seeded --seeds 200` runs many; the tests run the first of them.
"""

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from tenacity import wait_random_exponential

from slackwater.demo.load import Load
from slackwater.endpoint import plaintext
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.errors import ReaderError
from slackwater.reader.transport.connection import Connection
from slackwater.scheduler.epoch import watermark_for_end
from slackwater.scheduler.errors import AuditError
from slackwater.state.errors import StateError
from slackwater.testing.compare import compare, cut_violations
from slackwater.testing.emulator import running_emulator
from slackwater.testing.plain_client import TruthRecord
from slackwater.timestamp import NANOSECONDS_PER_SECOND, format_rfc3339
from tests.faults.proxy import Breaks, Delays, FailsOnce, FaultProxy, HideEnds, Rule
from tests.faults.statuses import REFUSALS
from tests.support.emulators import database_on, named
from tests.support.epochs import AbandonedError, EpochLoop
from tests.support.programs import parsed_options
from tests.support.truths import truth_of

LOAD_SECONDS = 4.0
TRANSACTIONS_PER_SECOND = 40
CHURN_SECONDS = 1
_TRIES_MAX = 200
# The partitions go on churning, and a scan of the emulator's costs more the longer it has run.
_SEEDS_OF_AN_EMULATOR = 8


@dataclass(frozen=True, slots=True)
class Sample:
    """A database that was written once for all runs."""

    stream: ChangeStream
    dialect: Dialect
    start_ns: int
    end_ns: int
    truth: list[TruthRecord]


def make_sample(stream: ChangeStream, dialect: Dialect) -> Sample:
    """Write to a new database and read the truth, both past the proxy."""
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    Load(stream, dialect, seed=11).run(
        transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=LOAD_SECONDS
    )
    end_ns = connection.strong_read_timestamp_ns()
    connection.close()
    truth = truth_of(stream, start_ns, end_ns, dialect)
    return Sample(stream, dialect, start_ns, end_ns, truth.records)


def rules_of(seed: int, choose: random.Random) -> list[Rule]:
    """The faults of a seed.

    A refusal fails the epoch. Of an epoch with ten queries hardly any try would succeed if queries
    that break often were refused often, too.
    """
    likely, refusals = choose.choice(((0.2, 0.3), (0.5, 0.05), (0.7, 0.0)))
    rules: list[Rule] = [
        FailsOnce(choose.randint(0, 5), REFUSALS[seed % len(REFUSALS)]),
        Breaks(likely, choose.randint(0, 4), choose.choice((0.0, 0.3)), refusals),
        Delays(choose.choice((0.0, 0.2))),
    ]
    if choose.random() < 0.5:
        rules.append(HideEnds(margin_ns=choose.choice((10**8, 10**9)), times=1))
    return rules


def decoding_of(seed: int) -> dict[str, Any]:
    """Half of the seeds decode by column however few the messages are, and in small batches."""
    if seed % 4 < 2:
        return {"_UNDELIVERED_ROWS_MAX": 512}
    return {"_BY_COLUMN_BYTES_MIN": 0, "_PENDING_BYTES_MAX": 5_000}


def run(seed: int, sample: Sample, folder: Path) -> Counter[str]:
    """Make one run, and return what was injected and what happened.

    Raises:
        AssertionError: the output differs from the truth, an epoch is no consistent cut, or a
            failure is permanent.
    """
    choose = random.Random(seed)
    rules = rules_of(seed, choose)
    options = {
        "max_span": choose.choice(("1s", "2s")),
        "tasks": choose.choice(("1", "2", "5")),
        "concurrent_queries": choose.choice(("1", "4", "16")),
        "proof": choose.choice(("ok", "record")),
        "end": format_rfc3339(last_ns(sample)),
    }
    proxied = FaultProxy(sample.stream.endpoint.target, rules, seed=seed)
    # The waits between tries are for a service's sake, the sizes for one that has more to read.
    waits = patch(
        "slackwater.reader.query.reopened_query._WAIT", wait_random_exponential(0.01, 0.2)
    )
    with (
        proxied as proxy,
        waits,
        patch.multiple("slackwater.reader.query.batch_decoder", **decoding_of(seed)),
    ):
        stream = replace(sample.stream, endpoint=plaintext(proxy.host))
        url = f"sqlite:///{folder / f'{seed}.db'}"
        tables, seen = _epochs(stream, url, sample, options, choose)
        seen.update(proxy.injected)
    output = pa.concat_tables(tables)
    comparison = compare(output, sample.truth)
    assert comparison.is_equal, f"seed {seed}: {comparison}"
    is_strict = options["proof"] == "record"
    hides = any(isinstance(rule, HideEnds) for rule in rules)
    if is_strict or not hides:
        assert cut_violations(output) == [], f"seed {seed}"
    return seen


def _epochs(
    stream: ChangeStream,
    url: str,
    sample: Sample,
    options: dict[str, str],
    choose: random.Random,
) -> tuple[list[pa.Table], Counter[str]]:
    tables, seen = [], Counter[str]()
    through_ns = watermark_for_end(last_ns(sample))
    loop = EpochLoop(stream, url, start_ns=sample.start_ns, options=options)
    for _ in range(_TRIES_MAX):
        if loop.watermark_ns is not None and loop.watermark_ns >= through_ns:
            break
        only_tasks = choose.randint(0, 2) if choose.random() < 0.2 else None
        try:
            tables.append(loop.epoch(only_tasks=only_tasks))
            seen["epochs"] += 1
        except AbandonedError:
            seen["abandoned"] += 1
        except (ReaderError, StateError, AuditError) as error:
            if error.user_error:
                raise AssertionError("the pipeline would have stopped for good") from error
            seen[f"failed: {type(error).__name__}"] += 1
        if choose.random() < 0.2:
            loop.close()
            loop = EpochLoop(stream, url, start_ns=sample.start_ns, options=options, resume=loop)
            seen["restarts"] += 1
    else:
        raise AssertionError(f"the low watermark stands at {loop.watermark_ns}: {seen}")
    loop.close()
    return tables, seen


def last_ns(sample: Sample) -> int:
    """After the last record there is an epoch more, for what the last cut with records hid."""
    return sample.end_ns + 2 * NANOSECONDS_PER_SECOND


@contextmanager
def samples() -> Iterator[dict[Dialect, Sample]]:
    """Make a sample of each dialect on its own emulator."""
    with running_emulator(partition_alive_seconds=CHURN_SECONDS) as emulator:
        with named(emulator):
            made = {
                dialect: make_sample(database_on(emulator, dialect), dialect) for dialect in Dialect
            }
        yield made


def _run_all(seeds: Sequence[int], failed: list[int]) -> Counter[str]:
    total: Counter[str] = Counter()
    dialects = list(Dialect)
    with samples() as made, tempfile.TemporaryDirectory() as folder:
        for seed in seeds:
            began = time.monotonic()
            try:
                seen = run(seed, made[dialects[seed % 2]], Path(folder))
            except AssertionError as error:
                failed.append(seed)
                print(f"seed {seed}: {str(error)[:2_000]}", flush=True)
                continue
            total += seen
            print(f"seed {seed}: {time.monotonic() - began:.1f} s {dict(seen)}", flush=True)
    return total


def main() -> int:
    """Run seeds and print a line for each; 1 if any differs from the truth."""
    options = parsed_options(__doc__, seeds=200, first=0)
    total: Counter[str] = Counter()
    failed: list[int] = []
    seeds = range(options.first, options.first + options.seeds)
    for first in seeds[::_SEEDS_OF_AN_EMULATOR]:
        batch = [seed for seed in seeds if first <= seed < first + _SEEDS_OF_AN_EMULATOR]
        total += _run_all(batch, failed)
    print(f"{options.seeds} runs, {len(failed)} differ {failed}: {dict(total)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
