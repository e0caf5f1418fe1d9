"""The JSON schema by which an editor completes and checks a settings file."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from slackwater.config.json_schema import settings_schema
from slackwater.config.load import load_pipelines
from slackwater.errors import SettingsError
from tests.support.command_line import slackwater
from tests.support.repository import DOCS

SOURCE = {"project": "shop-prod", "instance": "main", "database": "shop", "change_stream": "All"}
SINK = {"path": "out/changes", "checkpoint": "out/checkpoint"}
ONE: dict[str, Any] = {"pipeline": "orders", "source": SOURCE, "sink": SINK}
SEVERAL: dict[str, Any] = {
    "source": {key: value for key, value in SOURCE.items() if key != "change_stream"},
    "epoch": {"trigger": "5s", "heartbeat": "1s"},
    "pipelines": {
        "orders": {"source": {"change_stream": "Orders"}, "sink": SINK},
        "mirror": {
            "source": {"change_stream": "All"},
            "sink": {"kind": "mirror", "path": "m", "checkpoint": "c", "keep_versions": "never"},
        },
    },
}
RIGHT = [
    ONE,
    SEVERAL,
    ONE | {"source": SOURCE | {"initial_scan": "yes"}},
    ONE | {"source": SOURCE | {"initial_scan": False}},
    ONE | {"epoch": {"max_span": "1.5h", "trigger": 0, "reading": "continuous"}},
    ONE | {"sink": SINK | {"kind": "mirror", "format": "iceberg", "deletes": "mark"}},
    ONE | {"sink": SINK | {"kind": "kafka", "options": {"kafka.bootstrap.servers": "k:9092"}}},
    ONE | {"spark": {"conf": {"spark.driver.memory": "2g"}}, "http": {"listen": "0.0.0.0:8080"}},
]
WRONG = [
    ONE | {"sink": SINK | {"kind": "mirrors"}},
    ONE | {"sink": SINK | {"format": "csv"}},
    ONE | {"epoch": {"max_span": "a day"}},
    ONE | {"epoch": {"max_spam": "1d"}},
    ONE | {"epoch": {"concurrent_queries": 1_001}},
    ONE | {"pipeline": "Orders"},
    {"pipeline": "orders", "source": {"project": "shop-prod"}, "sink": SINK},
    {"pipeline": "orders", "source": SOURCE},
    {key: value for key, value in SEVERAL.items() if key != "pipelines"},
]
VALIDATOR = Draft202012Validator(settings_schema())


def is_loaded(values: Any, folder: Path) -> bool:
    """Return whether the program takes the same file."""
    path = folder / "slackwater.yaml"
    path.write_text(yaml.safe_dump(values))
    try:
        load_pipelines(path, {})
    except SettingsError:
        return False
    return True


def test_the_command_prints_a_valid_schema() -> None:
    done = slackwater("schema")
    assert done.returncode == 0
    schema = json.loads(done.stdout)
    assert schema == settings_schema()
    Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("values", RIGHT, ids=str)
def test_a_file_that_the_program_takes_is_valid(values: Any, tmp_path: Path) -> None:
    assert is_loaded(values, tmp_path)
    assert list(VALIDATOR.iter_errors(values)) == []


@pytest.mark.parametrize("values", WRONG, ids=str)
def test_a_file_that_the_program_refuses_for_a_key_or_a_value_is_not(
    values: Any, tmp_path: Path
) -> None:
    assert not is_loaded(values, tmp_path)
    assert not VALIDATOR.is_valid(values)


def test_an_editor_knows_each_key_of_the_settings_page_with_its_default() -> None:
    page = (DOCS / "settings.md").read_text()
    one, _ = settings_schema()["anyOf"]
    kinds = {name: one["properties"][name]["anyOf"] for name in ("source", "sink")}
    for key, default in re.findall(r"^\| ([a-z_]+(?:\.[a-z_]+)?) \| (.*?) \|", page, re.MULTILINE):
        if key in {"key", "pipelines"}:
            continue
        section, _, name = key.partition(".")
        schemas = kinds.get(section) or [one["properties"][section]]
        if not name:
            assert section in one["properties"]
            continue
        having = [schema["properties"][name] for schema in schemas if name in schema["properties"]]
        assert having, key
        if re.fullmatch(r"\d+(ms|s|m|h|d)", default):
            assert default in {schema["default"] for schema in having}, key
