"""`status` of a pipeline whose process had no time to say how it ended."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from slackwater.commands.status import status
from slackwater.config.load import load_settings
from slackwater.pipeline.lease_holder import owner_name
from slackwater.state.lease import acquire_lease
from slackwater.state.models import Lease, PipelineState
from slackwater.state.store import Store
from tests.unit.test_settings import MINIMAL

NAME_OF_THE_DEAD = "from slackwater.pipeline.lease_holder import owner_name; print(owner_name())"


@pytest.mark.parametrize("is_dead", [True, False])
def test_an_owner_that_died_is_not_shown_as_running(is_dead: bool, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(MINIMAL | {"state": {"url": url}}))
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
    reason = status(load_settings(config, {}))["reason"]
    assert reason == ("its process has died, and no other has taken over" if is_dead else None)
