"""The emulator: where it is looked for, and the message when it is not installed."""

from pathlib import Path

import pytest

from slackwater.errors import EmulatorNotFoundError
from slackwater.testing.emulator import find_emulator


def test_the_emulators_own_variable_comes_before_the_path(tmp_path: Path) -> None:
    program = tmp_path / "emulator_main"
    program.write_text("")
    program.chmod(0o755)
    assert find_emulator({"SPANNER_EMULATOR_PATH": str(program)}) == [str(program)]
    assert find_emulator({"PATH": str(tmp_path)}) == [str(program)]
    with pytest.raises(EmulatorNotFoundError, match="not an executable file"):
        find_emulator({"SPANNER_EMULATOR_PATH": str(tmp_path / "none")})


def test_a_missing_emulator_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.testing.emulator._SDK_FOLDERS", ())
    with pytest.raises(EmulatorNotFoundError, match="gcloud components install"):
        find_emulator({"PATH": str(tmp_path)})
