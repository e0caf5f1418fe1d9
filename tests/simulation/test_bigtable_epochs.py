"""Seeded lives of pipelines over a synthetic Bigtable: each change lands once, in order."""

import random
from itertools import cycle
from pathlib import Path
from unittest.mock import patch

import pytest
from tenacity import wait_none

from tests.simulation.bigtable_world import World
from tests.support.bigtable_rows import as_row, require_once
from tests.synthetic.bigtable.history import Shape, generate

SEEDS_OF_A_TEST = 6
# How likely a process dies at a step, or the rows of a task are lost.
LIKELY = (0.04, 0.1)


def shape_of(choose: random.Random) -> Shape:
    return Shape(
        seconds=choose.choice((3, 8)),
        tablets=choose.randint(1, 6),
        changes_per_s=choose.choice((5, 40)),
        churn_per_s=choose.choice((0, 1, 4)),
        clusters=choose.choice((1, 2)),
        rows=choose.choice((5, 50)),
        stalls=choose.choice((0, 0, 2)),
    )


@pytest.mark.parametrize("first", [0, pytest.param(SEEDS_OF_A_TEST, marks=pytest.mark.long)])
def test_each_change_lands_once_and_each_rows_in_order_whatever_dies(
    first: int, tmp_path: Path
) -> None:
    seeds = range(first, first + SEEDS_OF_A_TEST)
    lives = [live(seed, likely, tmp_path) for seed, likely in zip(seeds, cycle(LIKELY))]
    # A few lives may have none.
    assert any(world.deaths for world in lives)
    assert any(world.losses for world in lives)


def live(seed: int, likely: float, folder: Path) -> World:
    """Run a pipeline over the history of a seed, and hold its output against the history."""
    shape = shape_of(random.Random(seed))
    history = generate(seed, shape)
    world = World(history, folder / f"{seed}-{likely}.db", seed, likely=likely)
    with (
        patch("slackwater.reader.query.reopened_query._WAIT", wait_none()),
        patch("slackwater.reader.bigtable.partition_read.time", world.clock),
    ):
        # At an end that is moved later nothing is missing, and nothing comes twice.
        world.run_through((shape.start_us + shape.end_us) // 2)
        world.run_through(shape.end_us)
    try:
        require_once(list(map(as_row, world.rows())), history.changes)
    except AssertionError as error:
        error.add_note(f"seed {seed}")
        raise
    return world
