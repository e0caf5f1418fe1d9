"""Sinks, envelopes and table formats are found by their modules, in any mode of the interpreter."""

import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

import pytest

from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.spark_sink.modules import classes_by_name
from slackwater.spark_sink.sinks.registry import sink_kinds
from slackwater.spark_sink.tables.registry import TABLE_FORMATS


class Shape(ABC):
    """What the package of the test below defines."""

    name = ""

    @abstractmethod
    def draw(self) -> None:
        """Draw it."""


SHAPES = f"""
from {__name__} import Shape
class Square(Shape):
    name = "square"
    def draw(self): pass
class Circle(Shape):
    name = "circle"
    def draw(self): pass
class Polygon(Shape): pass
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty package that can be imported; its name is as new as the folder."""
    folder = tmp_path / tmp_path.name
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "shapes.py").write_text(SHAPES)
    monkeypatch.syspath_prepend(str(tmp_path))
    return folder


def found_in(package: Path) -> list[str]:
    return list(
        classes_by_name(
            package.name,
            Shape,  # type: ignore[type-abstract]
            lambda shape: shape.name,
            "square",
        )
    )


def test_each_concrete_class_is_found_once_and_the_default_comes_first(package: Path) -> None:
    (package / "importing.py").write_text(f"from {package.name}.shapes import Circle, Square")
    assert found_in(package) == ["square", "circle"]


def test_two_classes_of_one_name_are_refused(package: Path) -> None:
    (package / "twice.py").write_text(SHAPES)
    with pytest.raises(TypeError, match="have the same name"):
        found_in(package)


def test_the_registries_are_the_same_without_assertions() -> None:
    code = (
        "from slackwater.spark_sink.envelopes.registry import envelopes\n"
        "from slackwater.spark_sink.sinks.registry import sink_kinds\n"
        "from slackwater.spark_sink.tables.registry import TABLE_FORMATS\n"
        "print(__debug__, *envelopes(), *sink_kinds(), *TABLE_FORMATS)"
    )
    done = subprocess.run(
        [sys.executable, "-O", "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == ["False", *envelopes(), *sink_kinds(), *TABLE_FORMATS]


def test_defaults_are_listed_first() -> None:
    assert list(sink_kinds()) == [
        "changelog",
        "changelogs",
        "kafka",
        "mirror",
        "pubsub",
        "spark",
    ]
    assert next(iter(envelopes())) == "record"
    assert {"delta", "iceberg"} <= set(TABLE_FORMATS)
