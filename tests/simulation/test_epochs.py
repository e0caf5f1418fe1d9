"""The planner and the task run over thousands of simulated lives: the epoch's rules hold in each.

`python -m tests.simulation.test_epochs FIRST COUNT [MODE [READING]]` runs other seeds.
"""

import sys
import tempfile
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest

from slackwater.reader.change_stream import PartitionMode
from slackwater.scheduler.read_options import Proof, Reading
from slackwater.state.store import Store
from tests.simulation.epochs import Circumstances, Pipeline
from tests.simulation.history import STEP_NS

# Each pair of circumstances and size of batches once.
SEEDS = 12
_SEEDS_MAX = 48


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_template(tmp_path_factory.mktemp("simulation"))


def make_template(folder: Path) -> Path:
    path = folder / "template.db"
    Store.open(f"sqlite:///{path}", migrate=True).close()
    return path


def circumstances_of(
    seed: int, mode: PartitionMode, reading: Reading = Reading.BOUNDED
) -> Circumstances:
    circumstances = _circumstances_of(seed, mode)
    if reading is Reading.CONTINUOUS:
        circumstances = replace(circumstances, continuous=True)
    if mode is PartitionMode.IMMUTABLE_KEY_RANGE or seed % 3 == 0:
        return circumstances
    return replace(circumstances, placements=True, adds=seed % 3 == 1)


def _circumstances_of(seed: int, mode: PartitionMode) -> Circumstances:
    hide = (0.0, 0.5)[seed % 2]
    proof = (Proof.OK, Proof.RECORD)[seed // 2 % 2]
    # An end that no committed epoch has shown is in the store alone: to lose it then is the one way
    # to lose records; with proof: record there is none. See docs/reliability.md.
    may_lose = proof is Proof.RECORD or not hide
    if seed % 12 == 2:
        # With a batch for each record, tasks are stopped while they claim children.
        return Circumstances(hide, proof, False, False, faults=60, only_stops=True, mode=mode)
    return Circumstances(hide, proof, loses_store=may_lose, rolls_back=may_lose, mode=mode)


def run(
    seed: int,
    folder: Path,
    template: Path,
    mode: PartitionMode,
    reading: Reading = Reading.BOUNDED,
) -> Pipeline:
    """Run one life to its end; batches are small, so that tasks wait for their receiver."""
    rows = (1, 8, 8_192)[seed // 4 % 3]
    pipeline = Pipeline(seed, folder, template, circumstances_of(seed, mode, reading))
    try:
        with (
            patch("slackwater.scheduler.tasks.task.BATCH_ROWS_MAX", rows),
            patch("slackwater.scheduler.tasks.task.HANDOFF_BYTES_MAX", rows),
            patch("slackwater.reader.query.batch_decoder._UNDELIVERED_ROWS_MAX", rows),
            # A life takes no time.
            patch("slackwater.scheduler.continuous.follower._AGAIN_AFTER_S", 0),
            patch("slackwater.reader.query_window.QUERY_SPAN_MAX_NS", 6 * STEP_NS),
        ):
            pipeline.run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        pipeline.close()
    return pipeline


def live(
    seed: int,
    folder: Path,
    template: Path,
    mode: PartitionMode,
    reading: Reading = Reading.BOUNDED,
) -> Counter[str]:
    """One simulated life, checked; what happened in it."""
    pipeline = run(seed, folder, template, mode, reading)
    circumstances, seen, output = pipeline.circumstances, pipeline.seen, pipeline.output
    rows = [row for batch in output.published.values() for row in batch]
    expected = pipeline.stream.expected(pipeline.first_ns, pipeline.watermark_ns)
    assert sorted(rows) == sorted(expected), f"seed {seed}: lost or doubled"
    late = 0
    former_ns = pipeline.first_ns
    for batch, end_ns in sorted(pipeline.checkpoint.ends.items()):
        assert output.watermarks[batch] == end_ns, f"seed {seed}: a wrong low watermark"
        assert all(time_ns <= end_ns for _, time_ns, _ in output.published[batch]), f"seed {seed}"
        late += sum(time_ns <= former_ns for _, time_ns, _ in output.published[batch])
        former_ns = end_ns
    if circumstances.proof is Proof.RECORD or not circumstances.hide:
        assert not late, f"seed {seed}: late records"
        if not (seen["stores lost"] or seen["stores rolled back"]):
            assert not seen["audits failed"], f"seed {seed}: the audit stopped a good epoch"
    return seen + Counter(
        epochs=len(output.published), rows=len(rows), hidden=pipeline.stream.hidden, late=late
    )


@pytest.mark.parametrize("mode", PartitionMode)
def test_every_record_once_in_its_epoch_whatever_dies(
    mode: PartitionMode, tmp_path: Path, template: Path
) -> None:
    require_met(tmp_path, template, mode, Reading.BOUNDED, "hidden")


@pytest.mark.parametrize("mode", PartitionMode)
def test_the_same_holds_with_queries_that_stay_open(
    mode: PartitionMode, tmp_path: Path, template: Path
) -> None:
    met = ("partitions taken", "partitions not taken", "open queries broken")
    require_met(tmp_path, template, mode, Reading.CONTINUOUS, *met)


def require_met(
    folder: Path, template: Path, mode: PartitionMode, reading: Reading, *further: str
) -> None:
    """Run the lives, and more until all has happened: what they never met they have not shown."""
    seen: Counter[str] = Counter()
    met = ("epochs", "crashes", "refused", "workers killed", "attempts stopped", "second attempts")
    for seed in range(_SEEDS_MAX):
        if seed >= SEEDS and all(seen[what] for what in (*met, *further)):
            break
        seen += live(seed, folder, template, mode, reading)
    assert {what for what in (*met, *further) if not seen[what]} == set()


def test_a_seed_gives_the_same_life_every_time(tmp_path: Path, template: Path) -> None:
    lives = [run(5, tmp_path, template, PartitionMode.IMMUTABLE_KEY_RANGE) for _ in range(2)]
    assert lives[0].output == lives[1].output
    assert lives[0].seen == lives[1].seen


if __name__ == "__main__":
    first, count = int(sys.argv[1]), int(sys.argv[2])
    of_mode = PartitionMode(sys.argv[3] if len(sys.argv) > 3 else "IMMUTABLE_KEY_RANGE")
    of_reading = Reading(sys.argv[4] if len(sys.argv) > 4 else "bounded")
    begun_s = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        total: Counter[str] = Counter()
        copied = make_template(Path(made))
        for number in range(first, first + count):
            total += live(number, Path(made), copied, of_mode, of_reading)
            if (number + 1) % 100 == 0:
                print(f"{number + 1 - first} lives passed", file=sys.stderr, flush=True)
    print(f"{count} lives from seed {first} in {time.monotonic() - begun_s:.0f} s: {dict(total)}")
