"""Java's version as the program itself tells it, and where it is looked for."""

from pathlib import Path

import pytest

from slackwater.errors import JavaNotFoundError
from slackwater.pipeline.spark.java import find_java, java_version


def fake_java(path: Path, says: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{says}\nEND\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("says", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19 LTS', 21),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ('Picked up _JAVA_OPTIONS: -Xmx1g\nopenjdk version "17.0.2" 2022-01-18', 17),
        ("The operation could not be completed. Unable to locate a Java Runtime.", None),
    ],
)
def test_the_version_is_read_from_what_java_prints(
    tmp_path: Path, says: str, version: int | None
) -> None:
    assert java_version(fake_java(tmp_path / "java", says)) == version


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    first = fake_java(tmp_path / "home" / "bin" / "java", 'openjdk version "21.0.1"')
    fake_java(tmp_path / "path" / "java", 'openjdk version "17.0.1"')
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "path")}
    assert find_java(environ) == first


def test_java_is_found_on_path(tmp_path: Path) -> None:
    program = fake_java(tmp_path / "java", 'openjdk version "17.0.1"')
    assert find_java({"PATH": str(tmp_path)}) == program


def test_a_java_home_without_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(JavaNotFoundError, match="has no bin/java"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_a_java_that_tells_no_version_is_refused(tmp_path: Path) -> None:
    fake_java(tmp_path / "bin" / "java", "Unable to locate a Java Runtime.")
    with pytest.raises(JavaNotFoundError, match="does not say its version"):
        find_java({"JAVA_HOME": str(tmp_path)})


@pytest.mark.parametrize("version", ["11.0.2", "1.8.0_392", "25"])
def test_another_java_is_refused_with_how_to_get_17(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "bin" / "java", f'openjdk version "{version}" 2025-04-15')
    with pytest.raises(JavaNotFoundError, match="Install Java 17"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_no_java_at_all_says_how_to_get_it() -> None:
    with pytest.raises(JavaNotFoundError, match="Install Java 17"):
        find_java({"PATH": "/nonexistent"})
