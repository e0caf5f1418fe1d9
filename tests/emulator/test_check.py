"""`slackwater check` says that a right set-up is right; wrong ones: test_wrong_set_ups.py."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from slackwater.commands.check import Check, checks
from slackwater.config.settings import Settings
from slackwater.errors import HttpError
from slackwater.pipeline.pipeline_source import connect_source
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.testing.emulator import Emulator
from tests.support import services
from tests.support.emulators import database_on
from tests.support.served_pages import certificate, served


@pytest.fixture(scope="module")
def stream(emulator: Emulator) -> ChangeStream:
    return database_on(emulator)


def checked(stream: ChangeStream, folder: Path, sections: dict[str, Any]) -> dict[str, Check]:
    values = services.settings(stream, folder, "now")
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return {check.name: check for check in checks(Settings(**values))}


def test_a_right_set_up_is_said_to_be_so(stream: ChangeStream, tmp_path: Path) -> None:
    tables = {"tables": ["Order*", "Customers"], "exclude_columns": ["Customers.N*"]}
    results = checked(stream, tmp_path, {"filter": tables, "http": {"listen": "127.0.0.1:0"}})
    assert [check.problem for check in results.values()] == [None] * len(results)
    assert results["filter"].detail == "2 of 3 watched tables"
    assert results["column types"].detail == "no new types"
    assert list(tmp_path.iterdir()) == []


def test_a_pipeline_warns_of_a_filter_that_matches_nothing(
    stream: ChangeStream, tmp_path: Path
) -> None:
    values = services.settings(stream, tmp_path, "now") | {"filter": {"tables": "ORDERS"}}
    settings = Settings(**values)
    with closing(connect_source(settings)) as source, capture_logs() as lines:
        source.check(settings)
    assert [line["hint"] for line in lines] == ["Did you mean 'Orders'?"]


def test_a_column_whose_name_mirrors_need_is_named(emulator: Emulator, tmp_path: Path) -> None:
    statements = ["CREATE TABLE t (id bigint PRIMARY KEY, _is_deleted bool)"]
    statements.append("CREATE CHANGE STREAM s FOR ALL")
    own = database_on(emulator, Dialect.POSTGRESQL, statements, "s")
    mirror = {"kind": "mirror", "format": "delta"}
    sections = {"sink": mirror, "source": {"initial_scan": "no"}}
    assert checked(own, tmp_path, sections)["start"].problem is None
    mirror["deletes"] = "mark"
    problem = checked(own, tmp_path, sections)["start"].problem
    assert "column t._is_deleted: its mirror needs that name" in str(problem)
    assert (
        checked(own, tmp_path, {**sections, "filter": {"exclude_columns": ["t._*"]}})[
            "start"
        ].problem
        is None
    )


@pytest.mark.parametrize("kind", ["mirror", "changelogs"])
def test_a_column_that_the_format_can_not_hold_is_named_before_anything_runs(
    kind: str, emulator: Emulator, tmp_path: Path
) -> None:
    statements = ['CREATE TABLE t (id bigint PRIMARY KEY, "full name" varchar)']
    statements.append("CREATE CHANGE STREAM s FOR ALL")
    own = database_on(emulator, Dialect.POSTGRESQL, statements, "s")
    sink: dict[str, Any] = {"kind": kind, "format": "delta"}
    sections = {"sink": sink, "source": {"initial_scan": "no"}}
    problem = checked(own, tmp_path, sections)["start"].problem
    assert "column t.'full name': delta does not take that name. Set" in str(problem)
    for remedy in (
        {"sink": sink | {"table_properties": {"delta.columnMapping.mode": "name"}}},
        {"sink": sink, "filter": {"exclude_columns": ["t.full*"]}},
        {"sink": sink | {"format": "iceberg"}},
    ):
        assert checked(own, tmp_path, sections | remedy)["start"].problem is None


def test_a_store_without_tables_will_be_set_up(stream: ChangeStream, tmp_path: Path) -> None:
    file = tmp_path / "state.db"
    file.touch()
    check = checked(stream, tmp_path, {})["metadata store"]
    assert (check.problem, check.detail) == (None, "is empty, will be set up")


def test_a_port_on_which_the_pipeline_itself_runs_is_right(
    stream: ChangeStream, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("a-token-of-many-characters")
    http = {"token_file": str(token), "tls": certificate(tmp_path, "another-name").model_dump()}
    with served(tmp_path, **http) as (host, port):
        listen = f"{host}:{port}"
        results = checked(stream, tmp_path, {"http": http | {"listen": listen}})
        token.unlink()
        wrong = checked(stream, tmp_path, {"http": http | {"listen": listen}})["http"].problem
    assert isinstance(wrong, HttpError)
    assert "http.token_file" in wrong.message
    assert results["http"].problem is None
    assert results["http"].detail == f"{listen}, where the pipeline is running"
