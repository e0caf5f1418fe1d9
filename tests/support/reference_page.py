"""Prints a page of the site: the options of the Spark source, as the program has them.

python -m tests.support.reference_page
"""

from collections.abc import Mapping
from typing import Any, Final

from slackwater.config.json_schema import whole_schema
from slackwater.printing import show
from slackwater.scheduler.source_settings import NotebookOptions
from slackwater.setting_values import is_duration

# Beside the pages; see the Makefile.
_SCHEMA: Final = "../slackwater.schema.json"
_HEAD: Final = f"""\
# Reference

The settings file has a [JSON schema]({_SCHEMA}), which `slackwater schema` prints.

The options of the [Spark source](spark-source.md) `spanner_changes`:

| option | type | default | meaning |
| --- | --- | --- | --- |
"""
# That of the machine which builds the site says nothing.
_CORES: Final = {"tasks": "the machine's cores"}


def reference_page() -> str:
    """Return the page in Markdown."""
    schema = whole_schema(NotebookOptions.model_json_schema())
    rows = [_row(name, option) for name, option in schema["properties"].items()]
    return _HEAD + "".join(sorted(rows, key=lambda row: "| required |" not in row))


def _row(name: str, option: Mapping[str, Any]) -> str:
    default = "none" if option.get("default") is None else option["default"]
    if "default" not in option:
        default = "required"
    if isinstance(default, bool):
        default = str(default).lower()
    cells = (name, _type(option), _CORES.get(name, default), option["description"])
    return f"| {' | '.join(map(str, cells))} |\n"


def _type(option: Mapping[str, Any]) -> str:
    """Return what an option may be, in words."""
    if is_duration(option):
        return "duration"
    one, *_ = option.get("anyOf", [option])
    if "enum" in one:
        return ", ".join(one["enum"])
    if "minimum" in one:
        return f"{one['minimum']} to {one['maximum']}"
    return {"string": "text", "boolean": "true, false", "object": "JSON"}[one["type"]]


if __name__ == "__main__":
    show(reference_page())
