"""Where a pipeline ends that begins with an initial scan."""

from __future__ import annotations

import pytest

from slackwater.pipeline.source import end_after_scan
from slackwater.state.models import Scan

SCAN = Scan("orders", at_ns=2_500, session="s", transaction_id=b"", tables="{}")


@pytest.mark.parametrize(("until_ns", "end_ns"), [(None, None), (1_500, 2_500), (3_500, 3_500)])
def test_a_pipeline_never_ends_before_its_initial_scan(
    until_ns: int | None, end_ns: int | None
) -> None:
    assert end_after_scan(until_ns, (SCAN, [])) == end_ns
    assert end_after_scan(until_ns, None) == until_ns
