"""The source's positions beside an output: those that a commit names are there, and few others."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from slackwater.spark_sink.output.position_files import FOLDER, PositionFiles
from tests.support.epoch_rows import on_disk

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def test_committed_positions_outlive_attempts_that_were_never_committed(tmp_path: Path) -> None:
    files = PositionFiles(on_disk(tmp_path))
    committed = files.add(BEGIN, "plan", "positions")
    files.remove_before(committed)
    for attempt in range(100):
        PositionFiles(on_disk(tmp_path)).add(BEGIN + timedelta(seconds=1), f"{attempt}", "lost")
    assert PositionFiles(on_disk(tmp_path)).read(committed) == "positions"


def test_a_file_goes_when_many_were_committed_after_it(tmp_path: Path) -> None:
    files = PositionFiles(on_disk(tmp_path))
    names = [files.add(BEGIN + timedelta(seconds=n), "plan", str(n)) for n in range(50)]
    for name in names:
        files.remove_before(name)
        assert files.read(name) is not None
    assert len(list((tmp_path / FOLDER).iterdir())) == 20
    assert files.read(names[0]) is None
