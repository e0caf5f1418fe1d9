"""`status` of a pipeline that has not started, that died, or that has run for long."""

from __future__ import annotations

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


@pytest.mark.parametrize("is_dead", [True, False])
def test_an_owner_that_died_is_not_shown_as_running(is_dead: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    owner = owner_name()
    if is_dead:
        command = [sys.executable, "-c", NAME_OF_THE_DEAD]
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        owner = done.stdout.strip()
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    acquire_lease(store, "orders", owner, Lease(None, 0, 0))
    store.set_state("orders", PipelineState.RUNNING, "", 0)
    store.close()
    reason = shown_for(config(tmp_path, url))["reason"]
    assert reason == ("its process has died, and no other has taken over" if is_dead else None)


def test_a_pipeline_that_has_not_started_is_called_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    settings = config(tmp_path, url)
    with pytest.raises(PipelineNotStartedError, match="'orders' has not started yet: the"):
        statuses([settings])
    with pytest.raises(PipelineNotStartedError, match="`slackwater run` starts it"):
        list(request(settings, DesiredState.STOPPED, seconds_max=5))
    assert not (tmp_path / "state.db").exists()
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("others", "stream")
    store.close()
    with pytest.raises(PipelineNotStartedError, match="The store has: others"):
        statuses([settings])


def test_status_says_since_when_it_counts_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    shown = shown_for(config(tmp_path, url))
    assert (shown["counted_since"], shown["records"]) == (None, 0)
    for second in (2, 1):
        start_ns = second * 10**9
        record_epoch(store, Epoch("orders", start_ns, start_ns + 10**9, 10, 5, 1, 0, 0.5))
    store.close()
    shown = shown_for(config(tmp_path, url))
    assert (shown["counted_since"], shown["records"]) == ("1970-01-01T00:00:01.000000Z", 20)


def test_an_owner_that_died_comes_first_in_the_answer(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    command = [sys.executable, "-c", NAME_OF_THE_DEAD]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    acquire_lease(store, "orders", done.stdout.strip(), Lease(None, 0, 0))
    store.set_state("orders", PipelineState.RUNNING, "", 0)
    store.close()
    shown = shown_for(config(tmp_path, url))
    assert shown["state"] == "not running"
    assert summary_line(shown).startswith("orders: Its process has died")


def test_of_several_pipelines_each_has_a_line_also_one_that_never_ran(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    store.close()
    settings = config(tmp_path, url)
    others = settings.model_copy(update={"pipeline": "others"})
    lines = [summary_line(fields) for fields in statuses([settings, others])]
    assert lines == ["orders: Has not started", "others: Has not started"]


def test_a_spanner_that_does_not_answer_is_named_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its port takes connections and says nothing, as behind a firewall."""
    url = f"sqlite:///{tmp_path / 'state.db'}"
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    acquire_lease(store, "orders", owner_name(), Lease(None, 0, 0))
    store.set_state("orders", PipelineState.RUNNING, "", 0)
    restart_at(store, "orders", 1, [])
    store.close()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", f"127.0.0.1:{silent.getsockname()[1]}")
        begun_s = time.monotonic()
        shown = shown_for(config(tmp_path, url))
        # The client alone tries for half a minute.
        assert time.monotonic() - begun_s < 20
    assert summary_line(shown).startswith("orders: Spanner has not answered within 5 s; behind by")
    assert (shown["state"], shown["lag_seconds"]) == ("running", None)


def shown_for(settings: Settings) -> dict[str, Any]:
    [fields] = statuses([settings])
    return fields


def config(folder: Path, url: str) -> Settings:
    path = folder / "slackwater.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": url}}))
    return load_settings(path, {})
