"""One owner: a standby takes over, and a first owner that was only frozen does no harm.

`python -m tests.proofs.takeover` kills owners, too."""

import time
from pathlib import Path

import pytest

from tests.proofs.takeover import Pair, wait_for
from tests.support.emulators import NewDatabase


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_frozen_owner_that_wakes_after_a_takeover_commits_nothing_more(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    pair = Pair(new_database(), tmp_path, duration="3s")
    pair.begin()
    frozen = pair.freeze()
    frozen_ns = pair.connection.strong_read_timestamp_ns()
    pair.second.wait_for_watermark(frozen_ns, seconds_max=60)
    frozen.thaw()
    # It learns that it was replaced, and stands by.
    wait_for(pair.first, "standing by", seconds_max=60)
    time.sleep(3)
    pair.end(pair.second)
    # The former owner is the standby now, and free to take over what was left to it.
    assert pair.first.drain() == 0
    assert "took over" in pair.second.log.read_text()
