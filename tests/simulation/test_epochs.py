"""The scheduler over thousands of simulated lives: the invariants of the epoch hold in each.

`python -m tests.simulation.test_epochs FIRST COUNT` runs other seeds.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from slackwater.scheduler.read_options import Proof
from slackwater.state.store import Store
from tests.simulation.epochs import Pipeline

SEEDS = 200
PARTS = 4


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("simulation"))


def make_template(folder: Path) -> Path:
    path = folder / "template.db"
    Store.open(f"sqlite:///{path}", migrate=True).close()
    return path


def live(seed: int, folder: Path, template: Path) -> Counter[str]:
    """One simulated life, checked; what happened in it."""
    hide = (0.0, 0.5)[seed % 2]
    proof = (Proof.OK, Proof.RECORD)[seed // 2 % 2]
    pipeline = Pipeline(seed, folder, template, hide=hide, proof=proof)
    try:
        pipeline.run()
    finally:
        pipeline.close()
    rows = [row for epoch in pipeline.committed.values() for row in epoch]
    expected = [
        (life.token, time_ns)
        for life in pipeline.history.lives.values()
        for time_ns in life.record_times(pipeline.first_ns, pipeline.watermark_ns)
    ]
    assert sorted(rows) == sorted(expected), f"seed {seed}: lost or doubled"
    if proof is Proof.RECORD or not hide:
        assert not pipeline.late, f"seed {seed}: late records"
        assert not pipeline.audits_failed, f"seed {seed}: the audit stopped a good epoch"
    former_ns = pipeline.first_ns
    for end_ns, epoch in sorted(pipeline.committed.items()):
        in_cut = [row for row in epoch if row not in pipeline.late]
        assert all(former_ns < time_ns <= end_ns for _, time_ns in in_cut), f"seed {seed}"
        former_ns = end_ns
    return Counter(
        epochs=len(pipeline.committed),
        rows=len(rows),
        crashes=pipeline.crashes,
        refused=pipeline.refused,
        hidden=pipeline.stream.hidden,
        audits_failed=pipeline.audits_failed,
        late=len(pipeline.late),
    )


@pytest.mark.parametrize("part", range(PARTS))
def test_every_record_once_in_its_epoch_whatever_dies(
    part: int, tmp_path: Path, template: Path
) -> None:
    seen: Counter[str] = Counter()
    for seed in range(part, SEEDS, PARTS):
        seen += live(seed, tmp_path, template)
    # What a simulation never met it has not shown.
    # The strict proof leaves nothing to hide: see live().
    hides = part == 1
    assert all(seen[what] > 0 for what in ("epochs", "crashes", "refused"))
    assert (seen["hidden"] > 0) == hides


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    with tempfile.TemporaryDirectory() as made:
        total: Counter[str] = Counter()
        copied = make_template(Path(made))
        for number in range(first, first + count):
            total += live(number, Path(made), copied)
    print(f"{count} lives from seed {first}: {dict(total)}")
