"""Which snapshots of an Iceberg table are not needed any more, and which metadata files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.spark_sink.output.iceberg.retention import Snapshot, expire_before_ms
from slackwater.spark_sink.tables.iceberg_maintenance import empty_old_metadata

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


def test_the_number_of_an_old_metadata_file_stays_taken_for_a_day(tmp_path: Path) -> None:
    hour_s = 3600
    for version in range(1, 121):
        (tmp_path / f"v{version}.metadata.json").write_text("{}")
        (tmp_path / f".v{version}.metadata.json.crc").write_text("sum")
        age_s = (120 - version) * 10
        os.utime(tmp_path / f"v{version}.metadata.json", (0, _now(tmp_path) - age_s))
    others = ["version-hint.text", "snap-1.avro", "0000-uuid.metadata.json"]
    for name in others:
        (tmp_path / name).write_text("other")
    empty_old_metadata(tmp_path, hour_s)
    assert _with_content(tmp_path) == set(range(1, 121))
    empty_old_metadata(tmp_path, 20 * 10)
    # The last hundred stay, however old.
    assert _with_content(tmp_path) == set(range(21, 121))
    assert {path.name for path in tmp_path.glob("v*.json")} == {
        f"v{version}.metadata.json" for version in range(1, 121)
    }
    assert not (tmp_path / ".v20.metadata.json.crc").exists()
    for version in range(1, 11):
        os.utime(tmp_path / f"v{version}.metadata.json", (0, _now(tmp_path) - 25 * hour_s))
    empty_old_metadata(tmp_path, 20 * 10)
    assert min(int(path.name[1:].partition(".")[0]) for path in tmp_path.glob("v*.json")) == 11
    assert all((tmp_path / name).read_text() == "other" for name in others)


def _now(folder: Path) -> float:
    marker = folder / "now"
    marker.touch()
    return marker.stat().st_mtime


def _with_content(folder: Path) -> set[int]:
    return {
        int(path.name[1:].partition(".")[0])
        for path in folder.glob("v*.metadata.json")
        if path.stat().st_size
    }
