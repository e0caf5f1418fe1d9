"""Settings of Spark that change what lands are refused when settings are loaded."""

from pathlib import Path

import pytest

from slackwater.config.load import load_settings
from slackwater.errors import SettingsError
from slackwater.spark_sink.session_rules import REQUIRED, wrong_settings
from tests.support.repository import DOCS

FILE = """\
pipeline: orders
source: {project: test-project, instance: test, database: orders, change_stream: s}
sink: {path: /out, checkpoint: /checkpoint}
spark:
  conf:
"""


def load(folder: Path, conf: dict[str, str]) -> None:
    file = folder / "slackwater.yaml"
    file.write_text(FILE + "".join(f'    {name}: "{value}"\n' for name, value in conf.items()))
    load_settings(file, {})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.parquet.datetimeRebaseModeInWrite", "LEGACY"),
        ("spark.sql.storeAssignmentPolicy", "LEGACY"),
        ("spark.sql.timestampType", "TIMESTAMP_NTZ"),
        ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS"),
        ("spark.sql.files.ignoreMissingFiles", "true"),
        ("spark.sql.legacy.timeParserPolicy", "LEGACY"),
    ],
)
def test_a_setting_that_changes_what_lands_is_named(name: str, value: str, tmp_path: Path) -> None:
    other = {"spark.sql.session.timeZone": "Europe/Berlin"}
    with pytest.raises(SettingsError, match=rf"slackwater.yaml:5: spark.conf: {name} can't be"):
        load(tmp_path, {name: value} | other)


def test_the_values_that_are_needed_may_be_set(tmp_path: Path) -> None:
    load(tmp_path, dict(REQUIRED))
    assert list(wrong_settings({"spark.sql.ansi.enabled": "TRUE"})) == []


def test_the_page_lists_the_settings() -> None:
    page = (DOCS / "output.md").read_text()
    for name, value in REQUIRED.items():
        parts = [name] if "Rebase" not in name else [name.rpartition(".")[0], value]
        assert all(part in page for part in parts), name
