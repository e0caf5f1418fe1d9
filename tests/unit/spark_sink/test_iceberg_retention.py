"""Which snapshots of an Iceberg table are not needed any more, and which metadata files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.output.iceberg.retention import Snapshot, expire_before_ms

OWN = "slackwater orders"


def test_the_snapshot_that_was_current_at_the_time_stays() -> None:
    snapshots = [Snapshot(number, number * 10, OWN) for number in range(1, 6)]
    assert expire_before_ms(snapshots, 5, OWN, 35) == 30
    assert expire_before_ms(snapshots, 5, OWN, 30) == 30
    assert expire_before_ms(snapshots, 5, OWN, 5) == 5


@pytest.mark.parametrize(
    ("published", "application", "before"),
    [
        # The published one is not the last, as after a compaction of an idle table.
        (2, None, 20),
        # What the table has of the pipeline's epochs is told by an earlier snapshot.
        (5, 3, 30),
        (5, 1, 10),
        (None, None, 50),
    ],
)
def test_what_the_pipeline_needs_stays(
    published: int | None, application: int | None, before: int
) -> None:
    snapshots = [
        Snapshot(number, number * 10, OWN if number == application else "other")
        for number in range(1, 6)
    ]
    assert expire_before_ms(snapshots, published, OWN, 1000) == before


@given(st.lists(st.booleans(), min_size=1), st.data())
def test_nothing_needed_is_expired(owned: list[bool], data: st.DataObject) -> None:
    snapshots = [
        Snapshot(number, number * 10, OWN if is_own else None)
        for number, is_own in enumerate(owned)
    ]
    published = data.draw(st.sampled_from(snapshots))
    time_ms = data.draw(st.integers(-5, len(owned) * 10 + 5))
    before_ms = expire_before_ms(snapshots, published.id, OWN, time_ms)
    left = [snapshot for snapshot in snapshots if snapshot.committed_ms >= before_ms]
    assert published in left
    assert not any(owned) or max((s for s in snapshots if s.application), key=_at) in left
    current = [snapshot for snapshot in snapshots if snapshot.committed_ms <= time_ms]
    assert not current or max(current, key=_at) in left


def _at(snapshot: Snapshot) -> int:
    return snapshot.committed_ms
