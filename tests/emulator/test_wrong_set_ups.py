"""A wrong set-up is named by `check` or `run`, with what to do, and leaves nothing behind.

Both run in this process, and Spark is not started. What only Spark can see is in
tests/spark/test_bad_input.py.
"""

from pathlib import Path

import pytest
import yaml

from slackwater.commands import run as run_command
from slackwater.reader.change_stream import ChangeStream
from slackwater.testing.emulator import Emulator
from tests.support import services
from tests.support.command_line import slackwater
from tests.support.emulators import database_on
from tests.support.wrong_endpoints import ENDPOINTS
from tests.support.wrong_set_ups import WRONG

# How a line of `check` or of any other command begins.
ANSWERS = ("wrong ", "slackwater: ")


@pytest.fixture(scope="module")
def stream(emulator: Emulator) -> ChangeStream:
    return database_on(emulator)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, which is empty."""
    made = tmp_path / "work"
    made.mkdir()
    monkeypatch.chdir(made)
    return made


@pytest.mark.parametrize("name", [*WRONG, *ENDPOINTS])
def test_a_wrong_set_up_is_named_with_what_to_do_and_leaves_nothing(
    name: str,
    stream: ChangeStream,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_up = {**WRONG, **ENDPOINTS}[name]
    monkeypatch.setattr(run_command, "spark_of", None)
    for variable, value in set_up.environ.items():
        if value is None:
            monkeypatch.delenv(variable, raising=False)
        else:
            monkeypatch.setenv(variable, value)
    with set_up.world() as more:
        values = services.settings(stream, folder, "now")
        for sections in (set_up.sections, more):
            for section, keys in sections.items():
                merged = {**values.get(section, {}), **keys}
                values[section] = {key: value for key, value in merged.items() if value is not None}
        config = folder.parent / "slackwater.yaml"
        config.write_text(yaml.safe_dump(values) if set_up.text is None else set_up.text)
        arguments = ("-c", str(config)) if set_up.arguments is None else set_up.arguments
        for command in set_up.by:
            done = slackwater(command, *arguments)
            said = done.stdout + done.stderr
            assert set_up.says in said
            assert set_up.remedy in said
            assert done.returncode == set_up.code, said
            named = [line for line in said.splitlines() if line.startswith(ANSWERS)]
            assert len(named) == 1, said
            assert "Traceback" not in said
            assert "secret" not in said
    assert list(folder.iterdir()) == []


def test_check_names_no_start_wrong_from_which_the_pipeline_has_gone_on(
    stream: ChangeStream, folder: Path
) -> None:
    values = services.settings(stream, folder, "1999-01-01T00:00:00Z")
    config = folder / "slackwater.yaml"
    config.write_text(yaml.safe_dump(values))
    checkpoint, output = (Path(values["sink"][name]) for name in ("checkpoint", "path"))
    for present in ((), (checkpoint,), (output / "_watermarks",)):
        for path in present:
            path.mkdir(parents=True)
        said = slackwater("check", "-c", str(config)).stdout
        assert ("wrong start: " in said) is not bool(present)
        assert ("ok    start: 1999-01-01T00:00:00Z, too old by now" in said) is bool(present)
        for path in present:
            path.rmdir()
