"""A round of `verify --continuous` over some of a pipeline's tables."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.commands import continuous_verification
from slackwater.commands.continuous_verification import ContinuousVerification
from slackwater.monitoring.json_fields import verification_fields
from slackwater.state.store import Store
from slackwater.state.verified_models import VerifiedTable
from slackwater.state.verified_tables import record_verified, verified_tables


def test_tables_that_are_not_chosen_are_not_proved_equal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = [SimpleNamespace(name=name) for name in ("A", "B")]

    def chosen(tables: list[Any], _settings: Any, names: Sequence[str]) -> list[Any]:
        return [table for table in tables if not names or table.name in names]

    monkeypatch.setattr(continuous_verification, "watched_tables", lambda *_: watched)
    monkeypatch.setattr(continuous_verification, "chosen_of", chosen)
    store = Store.open(f"sqlite:///{tmp_path}/state.db", migrate=True)
    store.ensure_pipeline("orders", "source")
    record_verified(store, VerifiedTable("orders", "A", equal_at_ns=5_000))
    handle = SimpleNamespace(connection=None, description=SimpleNamespace(dialect=None))
    source: Any = SimpleNamespace(handle=handle, mirror=lambda _table: None)
    settings: Any = SimpleNamespace(pipeline="orders")
    one = ContinuousVerification(source, settings, store, threading.Event(), ("A",), repair=False)
    assert list(one.round()) == []
    shown = verification_fields(verified_tables(store, "orders"), 6_000)
    assert shown == {"proved_equal_up_to": None, "tables": 2, "different": []}
