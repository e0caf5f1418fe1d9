"""Every record lands once, whatever breaks between the reader and Spanner: the first seeds.

`python -m tests.faults.seeded --seeds 200` runs more of them.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackwater.reader.change_stream import Dialect
from slackwater.testing.emulator import Emulator
from tests.faults.seeded import Sample, make_sample, run
from tests.faults.statuses import REFUSALS, RESETS
from tests.support.emulators import NewDatabase

SEEDS_IN_CI = 16


@pytest.fixture(scope="module")
def seen() -> Iterator[Counter[str]]:
    """Collect what was injected over all seeds: a fault that no run met was not tested."""
    total: Counter[str] = Counter()
    yield total
    kinds = {status.kind for status in (*RESETS, *REFUSALS)}
    kinds |= {"hidden end", "delay", "restarts", "abandoned"}
    assert {kind for kind in kinds if not total[kind]} == set()
    for method in ("CreateSession", "ExecuteSql"):
        assert any(kind.endswith(f" of {method}") for kind in total)


@pytest.fixture(scope="module")
def samples(emulator: Emulator) -> dict[Dialect, Sample]:
    del emulator
    return {}


@pytest.mark.parametrize("seed", range(SEEDS_IN_CI))
def test_output_equals_truth_whatever_breaks(
    seed: int,
    new_database: NewDatabase,
    samples: dict[Dialect, Sample],
    tmp_path: Path,
    seen: Counter[str],
) -> None:
    dialect = list(Dialect)[seed % 2]
    if dialect not in samples:
        samples[dialect] = make_sample(new_database(dialect), dialect)
    seen.update(run(seed, samples[dialect], tmp_path))
