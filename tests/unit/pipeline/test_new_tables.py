"""Tables that are new to a change stream, when Spanner does not say which it watches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from slackwater.pipeline.epochs.new_tables import NewTables
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.errors import UnavailableError
from slackwater.timestamp import seconds_to_ns


def unreadable(_: int) -> Sequence[Table]:
    raise UnavailableError("Spanner does not answer.")


def test_an_epoch_that_nobody_has_looked_at_is_not_published_unless_it_is_long_past() -> None:
    no_store: Any = None
    new = NewTables("orders", unreadable, no_store, 1, every_s=0.0)
    with pytest.raises(UnavailableError):
        new.request_new(time.time_ns())
    assert new.request_new(time.time_ns() - seconds_to_ns(7_200)) == []
