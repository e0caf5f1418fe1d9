"""The settings: file and environment, checked as a whole, every problem named at once."""

import re
from functools import partial
from os.path import abspath
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.config.load import load_pipelines, load_settings
from slackwater.config.settings import SOURCE_KINDS, Settings
from slackwater.errors import SettingsError
from slackwater.spark_sink.sinks.registry import sink_kinds
from slackwater.spark_sink.sinks.sink_settings import SinkSettings
from slackwater.timestamp import parse_duration_ms
from tests.support.repository import DEPLOY, DOCS

MINIMAL: dict[str, Any] = {
    "pipeline": "orders",
    "source": {
        "project": "shop-prod",
        "instance": "main",
        "database": "shop",
        "change_stream": "all_changes",
    },
    "sink": {"path": "out/changes", "checkpoint": "out/checkpoint"},
}


def load(tmp_path: Path, text: str | None = None, **environ: str) -> Settings:
    path = tmp_path / "slackwater.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) if text is None else text)
    return load_settings(path, environ)


def problems(tmp_path: Path, text: str, **environ: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(tmp_path, text, **environ)
    return str(caught.value)


def test_missing_settings_have_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.source.start == "now"
    assert (settings.epoch.trigger, settings.epoch.max_span) == (1_000, 86_400_000)
    assert settings.sink.format == "parquet"
    assert settings.spark.master == "local[*,4]"


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        SLACKWATER_PIPELINE="payments",
        SLACKWATER_SOURCE_CHANGE_STREAM="other",
        SLACKWATER_EPOCH_MAX_SPAN="2m",
        SLACKWATER_SPARK_CONF='{"spark.executor.memory": "1g"}',
        UNRELATED="x",
    )
    assert settings.pipeline == "payments"
    assert settings.spanner().change_stream == "other"
    assert settings.epoch.max_span == 120_000
    assert settings.spark.conf == {"spark.executor.memory": "1g"}


def test_the_environment_alone_is_enough() -> None:
    environ = {
        "SLACKWATER_PIPELINE": "orders",
        "SLACKWATER_SINK_PATH": "a",
        "SLACKWATER_SINK_CHECKPOINT": "b",
    } | {f"SLACKWATER_SOURCE_{k.upper()}": v for k, v in MINIMAL["source"].items()}
    settings = load_settings(None, environ)
    assert settings.source.model_dump(include=set(MINIMAL["source"])) == MINIMAL["source"]
    # Also where the present folder is another one later, as in a view.
    assert (settings.sink.path, settings.sink.checkpoint) == (abspath("a"), abspath("b"))


def test_an_unknown_key_is_named_with_its_line_and_a_similar_one(tmp_path: Path) -> None:
    text = yaml.safe_dump(MINIMAL) + "epoch:\n  triger: 1s\n"
    line = text.splitlines().index("  triger: 1s") + 1
    said = problems(tmp_path, text)
    assert f"slackwater.yaml:{line}: epoch.triger: unknown key; did you mean 'trigger'?" in said


def test_an_unknown_variable_is_named(tmp_path: Path) -> None:
    said = problems(tmp_path, yaml.safe_dump(MINIMAL), SLACKWATER_SOURCE_PROJCT="x")
    assert "SLACKWATER_SOURCE_PROJCT: source.projct: unknown key; did you mean 'project'?" in said


def test_every_problem_is_named_at_once(tmp_path: Path) -> None:
    said = problems(tmp_path, "pipeline: Orders\nsource: {start: never}\nsink: {format: csv}\n")
    for expected in ("pipeline:", "source.project: is missing", "source.start", "sink.format"):
        assert expected in said


def test_a_filter_takes_lists_and_from_the_environment_commas(tmp_path: Path) -> None:
    text = yaml.safe_dump(MINIMAL | {"filter": {"tables": ["Orders", "sales.*"]}})
    path = tmp_path / "slackwater.yaml"
    path.write_text(text)
    environ = {"SLACKWATER_FILTER_MOD_TYPES": "INSERT,DELETE"}
    filter_settings = load_settings(path, environ).filter
    assert filter_settings.tables == ("Orders", "sales.*")
    assert filter_settings.mod_types == ("INSERT", "DELETE")
    assert filter_settings.system_transactions


def test_a_filter_takes_globs_of_columns(tmp_path: Path) -> None:
    column_globs = {"columns": ["Orders.*"], "exclude_columns": ["*.Email"]}
    filter_settings = load(tmp_path, yaml.safe_dump(MINIMAL | {"filter": column_globs})).filter
    assert (filter_settings.columns, filter_settings.exclude_columns) == (
        ("Orders.*",),
        ("*.Email",),
    )
    assert load(tmp_path, SLACKWATER_FILTER_COLUMNS="a.b.c,T.*").filter.columns == ("a.b.c", "T.*")


def test_a_time_that_yaml_reads_as_one_is_taken(tmp_path: Path) -> None:
    text = yaml.safe_dump(MINIMAL).replace("source:", "source:\n  start: 2026-01-31T09:00:00.5Z")
    assert load(tmp_path, text).source.start == "2026-01-31T09:00:00.5Z"


@pytest.mark.parametrize(
    ("text", "said"), [("[1]", "has no keys"), ("a: [", "is not valid YAML"), ("", "has no keys")]
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path: Path, text: str, said: str) -> None:
    assert said in problems(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "ms"), [("500ms", 500), ("1s", 1_000), ("1.5m", 90_000), ("2h", 7_200_000), (0, 0)]
)
def test_durations_are_milliseconds(text: object, ms: int) -> None:
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize("text", ["1", "s", "-1s", "1 week", False, True])
def test_an_invalid_duration_is_refused(text: object) -> None:
    """What YAML reads as yes or no is none either."""
    with pytest.raises(ValueError, match="not a valid duration"):
        parse_duration_ms(text)


def test_every_wrong_name_is_named(tmp_path: Path) -> None:
    names = {"project": "P", "database": "", "change_stream": "a;b"}
    wrong = MINIMAL | {"pipeline": "", "source": MINIMAL["source"] | names}
    said = problems(tmp_path, yaml.safe_dump(wrong))
    assert "pipeline: " in said
    for key, name in names.items():
        assert f"source.{key}: {key} {name!r} is not a valid name" in said


@pytest.mark.parametrize("name", ["_s", "s" * 128, "AllChanges2"])
def test_a_name_that_spanner_allows_is_accepted(tmp_path: Path, name: str) -> None:
    source = MINIMAL["source"] | {"change_stream": name}
    settings = load(tmp_path, yaml.safe_dump(MINIMAL | {"source": source}))
    assert settings.spanner().change_stream == name


@pytest.mark.parametrize("time", ["2026-01-31 09:00:00", "2026-01-31T09:00:00", "2026-01-31"])
def test_a_time_without_a_zone_is_refused(tmp_path: Path, time: str) -> None:
    """It would mean another moment on each machine."""
    unquoted = yaml.safe_dump(MINIMAL).replace("source:", f"source:\n  start: {time}")
    quoted = unquoted.replace(time, f'"{time}"')
    for text in (unquoted, quoted):
        assert "source.start" in problems(tmp_path, text)


def test_an_offset_is_taken_into_account_when_the_end_is_compared(tmp_path: Path) -> None:
    times = {"start": "2026-01-31T09:00:00+02:00", "end": "2026-01-31T08:00:00Z"}
    source = MINIMAL["source"] | times
    assert load(tmp_path, yaml.safe_dump(MINIMAL | {"source": source})).source.end == times["end"]


def test_a_mapping_in_the_environment_is_json(tmp_path: Path) -> None:
    listed = '{"exclude": [{"location": "us-east1"}]}'
    settings = load(tmp_path, SLACKWATER_SOURCE_DIRECTED_READ=listed)
    assert settings.spanner().directed_read == {
        "excludeReplicas": {"replicaSelections": [{"location": "us-east1"}]}
    }
    said = problems(tmp_path, yaml.safe_dump(MINIMAL), SLACKWATER_SOURCE_DIRECTED_READ="{")
    assert "SLACKWATER_SOURCE_DIRECTED_READ: source.directed_read: '{' is not valid JSON" in said


TWO_ENDS = {"start": "2026-02-01T00:00:00Z", "end": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("section", "values", "said"),
    [
        ("source", TWO_ENDS, "lies before start"),
        ("source", {"credentials_file": "~/key.json"}, "has ~, which nothing but a shell"),
        ("state", {"url": "sqlite:///~/state.db"}, "has ~, which nothing but a shell replaces"),
        # One place in two spellings is one place.
        *(
            ("sink", {"path": path, "checkpoint": checkpoint}, "must differ")
            for path, checkpoint in (
                ("out/", "out"),
                ("out/a", "./out/a"),
                ("out/a", "out/b/../a"),
                ("s3a://b/a", "s3a://b//a/"),
                ("a", "a/."),
            )
        ),
        (
            "filter",
            {"mod_types": ["UPSERT"]},
            "filter.mod_types.0: Input should be 'INSERT', 'UPDATE' or 'DELETE'",
        ),
        (
            "filter",
            {"exclude_columns": ["Email"]},
            "filter.exclude_columns: 'Email' can't name a column",
        ),
        ("filter", {"exclude_columns": ["Email"]}, "as in Email.Name or *.Email"),
    ],
)
def test_values_that_can_not_be_meant_are_refused(
    tmp_path: Path, section: str, values: dict[str, Any], said: str
) -> None:
    wrong = MINIMAL | {section: MINIMAL.get(section, {}) | values}
    assert said in problems(tmp_path, yaml.safe_dump(wrong))


SEVERAL = {
    "source": {name: MINIMAL["source"][name] for name in ("project", "instance", "database")},
    "pipelines": {
        name: {
            "source": {"change_stream": name},
            "sink": {"path": f"out/{name}", "checkpoint": f"state/{name}"},
        }
        for name in ("orders", "customers")
    },
}


def test_one_of_several_pipelines_is_chosen_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "slackwater.yaml"
    path.write_text(yaml.safe_dump(SEVERAL, sort_keys=False))
    assert [settings.pipeline for settings in load_pipelines(path, {})] == ["orders", "customers"]
    assert load_settings(path, {}, pipeline="orders").spanner().change_stream == "orders"
    with pytest.raises(SettingsError, match="has several pipelines"):
        load_settings(path, {})


@pytest.mark.parametrize("chosen", ["orders", None])
@pytest.mark.parametrize("variable", ["SLACKWATER_PIPELINE", "SLACKWATER_pipeline"])
def test_a_variable_does_not_give_several_pipelines_one_name(
    tmp_path: Path, variable: str, chosen: str | None
) -> None:
    path = tmp_path / "slackwater.yaml"
    path.write_text(yaml.safe_dump(SEVERAL, sort_keys=False))
    for load_them in (load_pipelines, partial(load_settings, pipeline=chosen)):
        with pytest.raises(SettingsError) as caught:
            load_them(path, {variable: "orders"})
        assert caught.value.user_error
        assert f"{variable} can't be set beside pipelines in {path}" in caught.value.message
        assert caught.value.hint == "Unset it; --pipeline chooses one of: orders, customers"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"none\.yaml can't be read: No such file"):
        load_settings(tmp_path / "none.yaml", {})


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="not UTF-8 text"):
        load_settings(path, {})


def test_settings_do_not_change(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(tmp_path).pipeline = "other"


def test_the_example_in_deploy_is_valid() -> None:
    example = DEPLOY / "slackwater.yaml"
    assert load_settings(example, {}).pipeline == "orders"


def documented() -> dict[str, str]:
    """What docs/settings.md says is the default of each key."""
    page = (DOCS / "settings.md").read_text()
    by_name: dict[str, str] = {}
    for row in re.findall(r"^\| ([a-z_.]+(?:, [a-z_]+)*) \| (.*?) \|", page, re.MULTILINE):
        names, defaults = row[0].split(", "), row[1].split(", ")
        section = names[0].rpartition(".")[0]
        for index, name in enumerate(names):
            key = name if index == 0 or not section else f"{section}.{name}"
            by_name[key] = defaults[min(index, len(defaults) - 1)]
    return by_name


def test_the_settings_page_lists_every_key_with_its_default() -> None:
    said = documented()
    of_all = ("pipeline", "allow_readable_secrets")
    keys = {name: Settings.model_fields[name] for name in of_all}
    for section, field in Settings.model_fields.items():
        inner = getattr(field.annotation, "model_fields", {})
        keys |= {f"{section}.{name}": inner[name] for name in inner}
    # The default kind's come last: its defaults stand first on the page.
    for source in reversed(list(SOURCE_KINDS.values())):
        keys |= {f"source.{name}": field for name, field in source.model_fields.items()}
    for kind in (*sink_kinds().values(), sink_kinds()["changelog"]):
        keys |= {f"sink.{name}": field for name, field in kind.model_fields.items()}
    assert set(said) - {"key"} == set(keys)
    for key, field in keys.items():
        text = said[key]
        default = field.get_default(call_default_factory=True)
        if field.is_required():
            assert text == "required", key
        elif default in (None, (), ""):
            # Some depend on the kind of sink, and say so.
            assert text in ("none", "all") or " for " in text, key
        elif isinstance(default, bool):
            assert text == str(default).lower(), key
        elif isinstance(default, int) and not text.isdecimal():
            assert parse_duration_ms(text) == default, key
        else:
            assert text.partition(";")[0] == str(default), key


@pytest.mark.parametrize("kind", sink_kinds().values(), ids=sink_kinds())
def test_the_settings_page_says_the_defaults_of_each_kind_of_sink(kind: type[SinkSettings]) -> None:
    page = (DOCS / "settings.md").read_text()
    for name in ("format", "envelope"):
        row = re.search(rf"^\| sink\.{name} \| (.*?) \|", page, re.MULTILINE)
        assert row is not None
        if name in kind.model_fields and kind.kind_name() != "spark":
            assert kind.model_fields[name].default in re.split(r"[;, ]+", row[1])
