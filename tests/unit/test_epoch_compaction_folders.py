"""Epochs with folders in them become one folder with all of these, or none."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.output import epoch_compaction
from slackwater.spark_sink.output.epoch_compaction import EpochCompaction
from slackwater.spark_sink.output.epoch_directory import STAGING_FOLDER
from slackwater.spark_sink.output.epoch_groups import COMPACTED, sort_names
from slackwater.spark_sink.output.merged_files import write_merged

EPOCHS = [f"epoch=20260131T{hour:02d}0000.000000Z" for hour in (9, 10, 11)]
NEXT_DAY = "epoch=20260201T090000.000000Z"
TABLES = ("Customers", "Orders", "Payments")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return an output of which a day is over."""
    for epoch in (*EPOCHS, NEXT_DAY):
        for table in TABLES:
            folder = tmp_path / epoch / f"table_name={table}"
            folder.mkdir(parents=True)
            (folder / "part-00000.json").write_text(f"{epoch} {table}\n")
    return tmp_path


def lines(root: Path) -> Counter[str]:
    """Return the lines that a reader finds, who leaves replaced epochs out."""
    named = sort_names(path.name for path in root.glob("epoch=*"))
    files = [f for name in (*named.epochs, *named.compacted) for f in (root / name).rglob("*.json")]
    return Counter(line for file in files for line in file.read_text().splitlines())


@pytest.mark.parametrize("written", range(1, 1 + len(TABLES)))
def test_a_part_of_the_tables_does_not_become_the_epochs(
    root: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    """A successor, or this process itself for a rescan, removes what is staged."""
    before = lines(root)
    merged: list[Path] = []

    def remove_when_written(files: Sequence[Path], folder: Path) -> None:
        write_merged(files, folder)
        merged.append(folder)
        if len(merged) == written:
            shutil.rmtree(root / STAGING_FOLDER)

    monkeypatch.setattr(epoch_compaction, "write_merged", remove_when_written)
    compaction = EpochCompaction(root, "owner")
    with pytest.raises(PublishError, match="made by another process"):
        compaction.run(0)
    assert lines(root) == before
    monkeypatch.undo()
    compaction.run(0)
    assert lines(root) == before
    assert [path.name for path in root.glob("epoch=*")] == [f"{EPOCHS[-1]}{COMPACTED}", NEXT_DAY]
