"""What `slackwater init` writes is a valid settings file that says what was chosen."""

import io
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from slackwater.commands.init import InitOptions, create_statement, init, prompt_at_terminal
from slackwater.config.load import load_settings
from slackwater.config.new_file import SINKS, NewPipeline, settings_text
from slackwater.errors import SettingsError
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.spark_sink.sinks.registry import sink_kinds
from tests.unit.config.test_settings import documented

STREAM = ChangeStream("shop-prod", "main", "shop", "AllChanges")
TEXT = "value capture type NEW_ROW, kept for 7 d"
PIPELINE = NewPipeline(
    "orders", STREAM, {}, TEXT, ["Orders"], "parquet", "out/orders", "broker:9092"
)
NAMES = {"project": "shop-prod", "instance": "main", "database": "shop"}
OPTIONS = InitOptions(Path("s.yaml"), NAMES, (), "parquet", None, None, None, force=False)


def keys_of(values: Any, prefix: str = "") -> set[str]:
    return {
        key
        for name, value in values.items()
        for key in (
            keys_of(value, f"{prefix}{name}.")
            if isinstance(value, dict) and not prefix
            else {f"{prefix}{name}"}
        )
    }


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("path", ["out/orders", "/data/orders/", "gs://bucket/orders"])
def test_a_file_for_each_sink_is_valid_and_its_keys_are_documented(
    sink: str, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slackwater.yaml"
    pipeline = replace(PIPELINE, sink=sink, path=path)
    file.write_text(settings_text(pipeline, file_name=file.name))
    settings = load_settings(file, {})
    assert settings.pipeline == "orders"
    assert settings.source.model_dump(include={*NAMES, "change_stream"}) == {
        **NAMES,
        "change_stream": "AllChanges",
    }
    for name, value in SINKS[sink].keys.items():
        assert getattr(settings.sink, name) == value
    # Delta knows no relative path.
    folder = path.rstrip("/") if "://" in path else str(tmp_path / path)
    assert settings.sink.place_path.startswith(f"{folder}/")
    if not settings.sink.has_expendable_checkpoint:
        assert settings.sink.checkpoint == f"{folder}/checkpoint"
    assert settings.state.url.startswith("sqlite:///")
    assert "gs://" not in settings.state.url
    if sink == "ducklake" and "://" in path:
        assert settings.sink.catalog == "sqlite:///orders/catalog.sqlite"
    assert keys_of(yaml.safe_load(file.read_text())) <= set(documented())


@pytest.mark.parametrize("sink", ["delta", "changelogs", "mirror", "iceberg", "kafka"])
@pytest.mark.parametrize("path", ["out", "s3://bucket/orders"])
def test_jars_are_spoken_of_where_some_are_fetched(sink: str, path: str) -> None:
    text = settings_text(replace(PIPELINE, sink=sink, path=path), file_name="s.yaml")
    assert ("jars are fetched" in text) == (sink == "kafka")


def test_a_file_for_the_present_folder_names_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "slackwater.yaml"
    file.write_text(settings_text(replace(PIPELINE, path="."), file_name=file.name))
    settings = load_settings(file, {})
    places = (settings.sink.path, settings.sink.checkpoint)
    assert places == (str(tmp_path / "changes"), str(tmp_path / "checkpoint"))
    assert settings.state.url == "sqlite:///state.db"


def test_every_kind_of_sink_can_be_chosen() -> None:
    assert {choice.keys["kind"] for choice in SINKS.values()} == set(sink_kinds())
    changelogs = {c.keys["format"] for c in SINKS.values() if c.keys["kind"] == "changelog"}
    assert changelogs == set(sink_kinds()["changelog"].formats)


TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(TEXTS, max_size=25), TEXTS, TEXTS)
def test_no_name_breaks_the_file(
    tmp_path: Path, tables: list[str], path: str, servers: str
) -> None:
    file = tmp_path / "slackwater.yaml"
    pipeline = replace(PIPELINE, tables=tables, sink="kafka", path=f"/x{path}", servers=servers)
    file.write_text(settings_text(pipeline, file_name=f"it's\n{path}"), encoding="utf-8")
    assert "check -c 'it'\"'\"'s " in file.read_text(encoding="utf-8")
    sink = yaml.safe_load(file.read_text(encoding="utf-8"))["sink"]
    assert sink["path"] == f"/x{path}".rstrip("/") + "/staging"
    assert load_settings(file, {}).sink.model_dump()["options"] == {
        "kafka.bootstrap.servers": servers
    }


@pytest.mark.parametrize("sink", SINKS)
def test_the_statement_captures_what_the_sink_needs(sink: str) -> None:
    captures = "(retention_period = '7d'"
    captures += ", value_capture_type = 'NEW_ROW')" if sink in ("kafka", "pubsub") else ")"
    googlesql = create_statement(Dialect.GOOGLE_STANDARD_SQL, "Everything", sink)
    assert googlesql == f"CREATE CHANGE STREAM `Everything` FOR ALL OPTIONS {captures}"
    postgresql = create_statement(Dialect.POSTGRESQL, "everything", sink)
    assert postgresql == f'CREATE CHANGE STREAM "everything" FOR ALL WITH {captures}'


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"names": {"project": "shop-prod"}}, "missing: --instance, --database."),
        ({"source": ["endpiont=h:1"]}, "--source endpiont: unknown key. Did you mean 'endpoint'?"),
        ({"source": ["endpoint"]}, "--source endpoint is not KEY=VALUE."),
        ({"source": ["database=other"]}, "--source database: unknown key."),
        ({"sink": "parket"}, "--sink parket is not one of parquet, json"),
        ({"sink": "kafka"}, "missing: --kafka-servers"),
        ({"servers": "broker:9092"}, "--kafka-servers goes with --sink kafka"),
        ({"pipeline": "My Orders"}, "--pipeline: 'My Orders' must match"),
        (
            {"sink": "kafka", "servers": "b:1", "path": "s3://bucket/orders"},
            "Sinks that run there: parquet, json, orc, delta, iceberg, ducklake, changelogs,",
        ),
        ({"sink": "changelogs", "path": "az://c/orders"}, "Account must be specified"),
        (
            {"path": "foo://bucket"},
            "path is foo://bucket/changes, which is neither on a local disk nor in an object store",
        ),
        ({"path": "~/orders"}, "has ~, which nothing but a shell replaces"),
        ({"file": Path("nowhere/s.yaml")}, "nowhere is not a writable folder"),
        ({"file": Path("taken.yaml")}, "taken.yaml is there already. Name another file"),
    ],
)
def test_a_wrong_option_is_named_before_spanner_is_asked(
    changed: dict[str, Any], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken.yaml").write_text("mine")
    with pytest.raises(SettingsError) as caught:
        init(replace(OPTIONS, **changed), None, {"SPANNER_EMULATOR_HOST": "192.0.2.1:1"})
    assert said in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.yaml"]
    assert (tmp_path / "taken.yaml").read_text() == "mine"


def test_a_question_is_asked_until_the_answer_is_one_of_the_values(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("parket\nkafka\n\n"))
    assert prompt_at_terminal("Sink", ["parquet", "kafka"], "parquet") == "kafka"
    assert prompt_at_terminal("Sink", ["parquet", "kafka"], "parquet") == "parquet"
    captured = capsys.readouterr()
    assert captured.err.count("Sink (parquet, kafka) [parquet]:") == 3
    assert captured.out.strip() == ""
