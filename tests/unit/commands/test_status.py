"""`status` of a pipeline that has not started, that died, or that has run for long."""

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.commands.request import request
from slackwater.commands.status import statuses, summary_line
from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.errors import PipelineNotStartedError
from slackwater.pipeline.lease_holder import owner_name
from slackwater.state.commit import restart_at
from slackwater.state.epochs import record_epoch
from slackwater.state.lease import acquire_lease
from slackwater.state.models import DesiredState, Epoch, Lease, PipelineState
from slackwater.state.store import Store
from tests.unit.config.test_settings import MINIMAL

NAME_OF_THE_DEAD = "from slackwater.pipeline.lease_holder import owner_name; print(owner_name())"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """The settings of the pipeline orders, whose store is that of orders_store."""
    path = tmp_path / "slackwater.yaml"
    url = f"sqlite:///{tmp_path / 'state.db'}"
    path.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": url}}))
    return load_settings(path, {})


def shown_for(settings: Settings) -> dict[str, Any]:
    [fields] = statuses([settings])
    return fields


def run_by(store: Store, owner: str) -> None:
    acquire_lease(store, "orders", owner, Lease(None, 0, 0))
    store.set_state("orders", PipelineState.RUNNING, "", 0)


def test_an_owner_that_lives_is_shown_as_running(settings: Settings, orders_store: Store) -> None:
    run_by(orders_store, owner_name())
    assert shown_for(settings)["reason"] is None


def test_an_owner_that_died_is_shown_first_and_not_as_running(
    settings: Settings, orders_store: Store
) -> None:
    command = [sys.executable, "-c", NAME_OF_THE_DEAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    run_by(orders_store, done.stdout.strip())
    shown = shown_for(settings)
    assert shown["reason"] == "its process has died, and no other has taken over"
    assert shown["state"] == "not running"
    assert summary_line(shown).startswith("orders: Its process has died")


def test_a_pipeline_that_has_not_started_is_called_so(tmp_path: Path, settings: Settings) -> None:
    with pytest.raises(PipelineNotStartedError, match="'orders' has not started yet: the"):
        statuses([settings])
    with pytest.raises(PipelineNotStartedError, match="`slackwater run` starts it"):
        list(request(settings, DesiredState.STOPPED, seconds_max=5))
    assert not (tmp_path / "state.db").exists()
    store = Store.open(settings.state.url, migrate=True)
    store.ensure_pipeline("others", "stream")
    store.close()
    with pytest.raises(PipelineNotStartedError, match="The store has: others"):
        statuses([settings])


def test_status_says_since_when_it_counts_records(settings: Settings, orders_store: Store) -> None:
    shown = shown_for(settings)
    assert (shown["counted_since"], shown["records"]) == (None, 0)
    for second in (2, 1):
        start_ns = second * 10**9
        record_epoch(orders_store, Epoch("orders", start_ns, start_ns + 10**9, 10, 5, 1, 0, 0.5))
    shown = shown_for(settings)
    assert (shown["counted_since"], shown["records"]) == ("1970-01-01T00:00:01.000000Z", 20)


def test_of_several_pipelines_each_has_a_line_also_one_that_never_ran(
    settings: Settings, orders_store: Store
) -> None:
    others = settings.model_copy(update={"pipeline": "others"})
    lines = [summary_line(fields) for fields in statuses([settings, others])]
    assert lines == ["orders: Has not started", "others: Has not started"]


def test_a_spanner_that_does_not_answer_is_named_within_seconds(
    settings: Settings, orders_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port takes connections and says nothing, as behind a firewall."""
    run_by(orders_store, owner_name())
    restart_at(orders_store, "orders", 1, [])
    monkeypatch.setattr("slackwater.commands.status._ANSWER_S_MAX", 1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", f"127.0.0.1:{silent.getsockname()[1]}")
        begun_s = time.monotonic()
        shown = shown_for(settings)
        # The client alone tries for half a minute.
        assert time.monotonic() - begun_s < 20
    assert summary_line(shown).startswith("orders: Spanner has not answered within 1 s; behind by")
    assert (shown["state"], shown["lag_seconds"]) == ("running", None)
