"""kill -9 while planning, reading, committing: the output equals the truth, in files and in Delta.

`python -m tests.kills --kills 30 --format delta` kills more often.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.emulators import NewDatabase
from tests.kills import Killing, Moment

# Delta's part of an epoch is the commit; the rest is as with files. tests.kills does all of both.
MOMENTS = {
    "parquet": tuple(moment for moment in Moment if moment is not Moment.SINK_COMMIT),
    "delta": (Moment.SINK_COMMIT,),
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("file_format", MOMENTS)
def test_a_kill_at_any_moment_of_an_epoch_loses_and_doubles_nothing(
    file_format: str, new_database: NewDatabase, tmp_path: Path
) -> None:
    moments = MOMENTS[file_format]
    if file_format == "delta":
        # What a kill within the table's first commit leaves; no moment meets it for sure.
        (tmp_path / "changes" / "_delta_log" / "_staged_commits").mkdir(parents=True)
    killing = Killing(new_database(), tmp_path, file_format, seed=7, moments=moments)
    killing.run(len(moments))
    assert killing.killed == {moment.value: 1 for moment in moments}
