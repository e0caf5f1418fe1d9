"""kill -9 while planning, reading, committing: the output equals the truth, in files and in Delta.

`python -m tests.kills --kills 30 --format delta` kills more often.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulators import NewDatabase
from tests.kills import Killing, Moment

KILLS_IN_CI = len(Moment)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file_format", ["parquet", "delta"])
def test_a_kill_at_any_moment_of_an_epoch_loses_and_doubles_nothing(
    file_format: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    killing = Killing(new_database(), tmp_path, file_format, seed=7)
    killing.run(KILLS_IN_CI)
    assert killing.killed == {moment.value: 1 for moment in Moment}
