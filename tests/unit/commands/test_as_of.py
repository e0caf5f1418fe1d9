"""What `slackwater as-of` prints, and which questions it refuses."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from slackwater.commands.as_of import as_of, follow, text_of
from slackwater.commands.options import CutFormat
from slackwater.config.load import load_settings
from slackwater.errors import SettingsError
from slackwater.spark_sink.errors import TableNameError
from slackwater.spark_sink.tables.cut import Cut, TableVersion

CATALOG = {"spark.sql.catalog.c.type": "hadoop", "spark.sql.catalog.c": "org.Catalog"}
CUT = Cut(
    datetime(2026, 1, 31, 9, 0, 0, 500_000, UTC),
    (
        TableVersion("Orders", "c.`Orders`", 6_104_370_521_104_370_521, CATALOG),
        TableVersion("archive.Notes", "c.`archive.Notes`", None, CATALOG),
    ),
)


def test_the_versions_are_printed_for_people() -> None:
    assert text_of(CUT, CutFormat.TEXT).splitlines() == [
        "low watermark 2026-01-31T09:00:00.500000Z",
        "Orders         6104370521104370521",
        "archive.Notes  no rows yet",
    ]


def test_the_statements_define_the_catalog_once_and_a_view_for_each_table() -> None:
    assert text_of(CUT, CutFormat.SQL).splitlines() == [
        "-- All mirrors at low watermark 2026-01-31T09:00:00.500000Z",
        "SET spark.sql.catalog.c.type=hadoop;",
        "SET spark.sql.catalog.c=org.Catalog;",
        "CREATE OR REPLACE TEMPORARY VIEW `Orders` AS",
        "  SELECT * FROM c.`Orders` VERSION AS OF 6104370521104370521;",
        "-- no rows yet:",
        "CREATE OR REPLACE TEMPORARY VIEW `archive_Notes` AS",
        "  SELECT * FROM c.`archive.Notes` WHERE false;",
    ]


def test_two_tables_never_get_one_view() -> None:
    tables = tuple(TableVersion(name, f"c.`{name}`", 1, {}) for name in ("a.B", "A_b", "c.D"))
    with pytest.raises(TableNameError, match=r"'a\.B' and 'A_b'") as refused:
        text_of(Cut(CUT.low_watermark, tables), CutFormat.SQL)
    assert "--table" in refused.value.hint
    assert "`c_D`" in text_of(Cut(CUT.low_watermark, tables[1:]), CutFormat.SQL)
    assert "a.B" in text_of(Cut(CUT.low_watermark, tables), CutFormat.TEXT)


def test_json_has_versions_as_texts() -> None:
    assert json.loads(text_of(CUT, CutFormat.JSON)) == {
        "low_watermark": "2026-01-31T09:00:00.500000Z",
        "tables": [
            {"table": "Orders", "name": "c.`Orders`", "version": "6104370521104370521"},
            {"table": "archive.Notes", "name": "c.`archive.Notes`", "version": None},
        ],
    }


def test_a_time_that_is_none_and_a_sink_without_mirrors_are_refused(tmp_path: Path) -> None:
    def settings(kind: str) -> str:
        source = "{project: shop-1, instance: shop, database: shop, change_stream: All}"
        sink = f"{{kind: {kind}, path: out, checkpoint: checkpoint}}"
        return f"pipeline: orders\nsource: {source}\nsink: {sink}\n"

    file = tmp_path / "slackwater.yaml"
    file.write_text(settings("mirror"))
    with pytest.raises(SettingsError, match="'yesterday' is not an RFC 3339 timestamp"):
        as_of(load_settings(file), "yesterday", ())
    with pytest.raises(SettingsError, match="--follow goes with the time last only"):
        follow(load_settings(file), "2026-01-31T09:00:00Z", (), file, CutFormat.JSON, 1.0)
    file.write_text(settings("changelogs"))
    with pytest.raises(SettingsError, match="only mirrors"):
        as_of(load_settings(file), "last", ())
