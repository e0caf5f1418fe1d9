"""What becomes of a chunk that can't be read."""

from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.pipeline.epochs.rescanner import Rescanner
from slackwater.reader.errors import UnavailableError

CAUGHT_UP_AT_NS = 1_000


def broken(monkeypatch: pytest.MonkeyPatch, caught_up_at_ns: int | None) -> Rescanner:
    settings: Any = SimpleNamespace(new_tables="changes_only", pipeline="orders")
    lease: Any = SimpleNamespace(generation=1)
    nothing: Any = None

    def fail(_: object, end_ns: int) -> None:
        raise UnavailableError(f"nothing can be read at {end_ns}.")

    monkeypatch.setattr(Rescanner, "_read_chunk", fail)
    monkeypatch.setattr("slackwater.pipeline.epochs.rescanner.delay_s", lambda failures: 0.0)
    return Rescanner(nothing, settings, nothing, nothing, lease, nothing, caught_up_at_ns)


def test_a_pipeline_goes_on_while_a_rescan_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rescanner = broken(monkeypatch, None)
    for end_ns in (CAUGHT_UP_AT_NS, CAUGHT_UP_AT_NS + 1):
        rescanner.published(end_ns)


def test_a_run_that_waits_for_nothing_but_a_rescan_fails_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rescanner = broken(monkeypatch, CAUGHT_UP_AT_NS)
    # Far behind, Spanner may no longer keep the rows of that time.
    rescanner.published(CAUGHT_UP_AT_NS - 1)
    with pytest.raises(UnavailableError, match="nothing can be read"):
        rescanner.published(CAUGHT_UP_AT_NS)
