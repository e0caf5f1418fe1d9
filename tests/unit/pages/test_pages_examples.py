"""Each example of settings, in a page or a file, is one that the program takes."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.config.load import PIPELINES, load_pipelines
from slackwater.config.settings import Settings
from slackwater.pipeline.spark.sink_needs import all_jars
from tests.support.repository import DOCS, ROOT
from tests.unit.config.test_settings import MINIMAL

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
SECTIONS = {*Settings.model_fields, PIPELINES}


def examples() -> list[Any]:
    """Return the blocks of YAML that are settings, each with a name."""
    blocks = []
    for page in PAGES:
        for match in re.finditer(r"^ *```yaml\n(.*?)^ *```$", page.read_text(), re.M | re.S):
            line = page.read_text()[: match.start()].count("\n") + 2
            blocks.append((f"{page.name}:{line}", match.group(1)))
    blocks += [(file.name, file.read_text()) for file in sorted((ROOT / "examples").glob("*.yaml"))]
    named = []
    for name, text in blocks:
        values = yaml.safe_load(text)
        if isinstance(values, dict) and SECTIONS.issuperset(values):
            named.append(pytest.param(values, id=name))
    return named


@pytest.mark.parametrize("values", examples())
def test_an_example_of_settings_is_taken(values: dict[str, Any], tmp_path: Path) -> None:
    """What an example leaves out is as in the smallest file."""
    whole: dict[str, Any] = {**MINIMAL, **values}
    if PIPELINES in values:
        del whole["pipeline"]
        if "sink" not in values:
            del whole["sink"]
    source = values.get("source", {})
    whole["source"] = source if "kind" in source else {**MINIMAL["source"], **source}
    if "sink" in values:
        places = {} if "path" in values["sink"] else MINIMAL["sink"]
        whole["sink"] = {**places, **values["sink"]}
        if "checkpoint" not in whole["sink"] and "://" not in str(whole["sink"].get("path")):
            whole["sink"]["checkpoint"] = "out/checkpoint"
    file = tmp_path / "slackwater.yaml"
    file.write_text(yaml.safe_dump(whole))
    environ = dict.fromkeys(re.findall(r"\$\{(\w+)\}", file.read_text()), "x")
    for settings in load_pipelines(file, environ):
        spark = settings.spark
        jars = all_jars(settings.sink.spark_needs, spark.conf, spark.jars, os.environ)
        settings.sink.check_places(spark.conf, jars)


def test_there_are_examples_of_each_kind_of_place() -> None:
    files = {file.stem for file in (ROOT / "examples").glob("*.yaml")}
    assert {"mirror", "kafka", "object-store"} <= files
    assert len(examples()) >= 20
