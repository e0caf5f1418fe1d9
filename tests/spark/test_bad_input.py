"""Bad input that only Spark can see, and the trace of --debug.

tests/support/wrong_set_ups.py has more.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import services
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase

PARTITION_ALIVE_S = 20

pytestmark = pytest.mark.usefixtures("commands_here")


@pytest.fixture
def settings(new_database: NewDatabase, tmp_path: Path) -> dict[str, Any]:
    return services.settings(new_database(), tmp_path / "out", "now")


def run(settings: Mapping[str, Any], tmp_path: Path, *arguments: str) -> tuple[int, str]:
    """`slackwater run`: exit code and what it said."""
    config = tmp_path / "slackwater.yaml"
    config.write_text(yaml.safe_dump(dict(settings)))
    done = slackwater(*arguments, "run", "-c", str(config), "--until-caught-up")
    return done.returncode, done.stderr


def said(text: str) -> str:
    """The last message, without the log's lines."""
    assert "Traceback" not in text, text
    assert text.count("slackwater: ") == 1, text
    return text[text.index("slackwater: ") :]


def test_debug_shows_the_trace(settings: dict[str, Any], tmp_path: Path) -> None:
    settings["source"]["database"] = "other-database"
    code, text = run(settings, tmp_path, "--debug")
    assert "Traceback" in text
    assert code == 2


def test_a_checkpoint_of_another_pipeline_and_a_lost_one_are_refused(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    code, text = run(settings, tmp_path)
    assert code == 0, text
    other = {**settings, "pipeline": "other"}
    code, text = run(other, tmp_path)
    assert "belongs to pipeline 'orders', and this is pipeline 'other'" in said(text)
    assert code == 2
    lost = {**settings, "sink": {**settings["sink"], "checkpoint": str(tmp_path / "out" / "new")}}
    code, text = run(lost, tmp_path)
    assert "epochs were committed, and the checkpoint is empty" in said(text)
    assert code == 2
    assert not (tmp_path / "out" / "new").exists()
