"""kill -9 while the tasks read and write: the output equals the truth.

`python -m tests.proofs.kills --kills 30 --format delta` kills more often, also while planning and
committing.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.proofs.kills import Killing, Moment
from tests.support.emulators import NewDatabase


@pytest.mark.timeout(1_200)
def test_a_kill_within_an_epoch_loses_and_doubles_nothing(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    # The other moments, and Delta, are among those of `make faults`.
    moments = [Moment.READING]
    killing = Killing(new_database(), tmp_path, "parquet", seed=7, moments=moments)
    killing.run(len(moments))
    assert killing.killed == {moment.value: 1 for moment in moments}
    files = (tmp_path / "changes").glob("epoch=*/*.parquet")
    writers = {pq.read_metadata(file).created_by.split()[0] for file in files}
    assert writers == {"parquet-cpp-arrow"}, "the tasks that read write by themselves"
