"""Java and the emulator: found, or a message that says how to get them."""

from pathlib import Path

import pytest

from slackwater.errors import EmulatorNotFoundError, JavaNotFoundError
from slackwater.pipeline.spark.java import find_java
from slackwater.testing.emulator import find_emulator


def _java(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-04-15' >&2\n")
    program.chmod(0o755)
    return program


def test_java_17_is_found_in_java_home(tmp_path: Path) -> None:
    program = _java(tmp_path, "17.0.15")
    assert find_java({"JAVA_HOME": str(tmp_path)}) == program


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "25"])
def test_another_java_is_refused_with_how_to_get_17(tmp_path: Path, version: str) -> None:
    _java(tmp_path, version)
    with pytest.raises(JavaNotFoundError, match="Install Java 17"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_no_java_at_all_says_how_to_get_it() -> None:
    with pytest.raises(JavaNotFoundError, match="Install Java 17"):
        find_java({"PATH": "/nonexistent"})


def test_the_emulator_is_found_by_its_own_variable_first(tmp_path: Path) -> None:
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
