"""`status` of a pipeline that has not started, that died, or that has run for long."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slackwater.commands.request import request
from slackwater.commands.status import status
from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.errors import PipelineNotStartedError
from slackwater.pipeline.lease_holder import owner_name
from slackwater.state.epochs import record_epoch
from slackwater.state.lease import acquire_lease
from slackwater.state.models import DesiredState, Epoch, Lease, PipelineState
from slackwater.state.store import Store
from tests.unit.test_settings import MINIMAL

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
    reason = status(config(tmp_path, url))["reason"]
    assert reason == ("its process has died, and no other has taken over" if is_dead else None)


def test_a_pipeline_that_has_not_started_is_called_so(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    settings = config(tmp_path, url)
    with pytest.raises(PipelineNotStartedError, match="'orders' has not started yet: the"):
        status(settings)
    with pytest.raises(PipelineNotStartedError, match="`slackwater run` starts it"):
        list(request(settings, DesiredState.STOPPED, seconds_max=5))
    assert not (tmp_path / "state.db").exists()
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("others", "stream")
    store.close()
    with pytest.raises(PipelineNotStartedError, match="The store has: others"):
        status(settings)


def test_status_says_since_when_it_counts_records(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    store = Store.open(url, migrate=True)
    store.ensure_pipeline("orders", "stream")
    shown = status(config(tmp_path, url))
    assert (shown["counted_since"], shown["records"]) == (None, 0)
    for second in (2, 1):
        start_ns = second * 10**9
        record_epoch(store, Epoch("orders", start_ns, start_ns + 10**9, 10, 5, 1, 0, 0.5))
    store.close()
    shown = status(config(tmp_path, url))
    assert (shown["counted_since"], shown["records"]) == ("1970-01-01T00:00:01.000000Z", 20)


def config(folder: Path, url: str) -> Settings:
    path = folder / "slackwater.yaml"
    path.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": url}}))
    return load_settings(path, {})
