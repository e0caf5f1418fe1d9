"""A setting of the source is the same in YAML, in a notebook and where it acts."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.errors import SettingsError
from slackwater.pipeline.source import source_options
from slackwater.scheduler import source_settings as shared
from slackwater.scheduler.epoch import watermark_for_end, watermark_for_start
from slackwater.scheduler.epoch_span import SpanTarget
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.options import SourceOptions, format_options, parse_options
from slackwater.scheduler.read_options import AuditMode, Proof, Reading
from slackwater.scheduler.source_settings import (
    HEARTBEAT,
    MAX_SPAN,
    REQUIRED,
    SETTINGS,
    Setting,
    heartbeat_ms,
)
from slackwater.sealing import unseal
from slackwater.timestamp import format_duration_ms, parse_duration_ms, parse_rfc3339

NAMES = {
    "project": "shop-prod",
    "instance": "main",
    "database": "shop",
    "change_stream": "all_changes",
}
SINK = {"path": "out/changes", "checkpoint": "out/checkpoint"}
DOCS = Path(__file__).parent.parent.parent / "docs"
BY_KEY = {setting.key: setting for setting in SETTINGS if setting.key is not None}


def in_yaml(tmp_path: Path, key: str, value: Any) -> Settings:
    """The settings of a file that sets one key."""
    values: dict[str, Any] = {"pipeline": "orders", "source": dict(NAMES), "sink": SINK}
    section, _, name = key.rpartition(".")
    (values.setdefault(section, {}) if section else values)[name] = value
    path = tmp_path / "slackwater.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_settings(path, {})


def in_a_worker(options: Mapping[str, str]) -> SourceOptions:
    """What Spark's workers get of options: parsed in one process and pickled to the others."""
    # Spark keeps the names of options in lower case only sometimes.
    parsed = parse_options({name.upper(): text for name, text in options.items()}, {})
    again: SourceOptions = pickle.loads(pickle.dumps(parsed))
    return again


def in_a_notebook(**options: str) -> SourceOptions:
    return in_a_worker({**NAMES, "state_url": "sqlite:///x.db", **options})


REPLICAS = {"includeReplicas": {"replicaSelections": [{"location": "a", "type": "READ_ONLY"}]}}
MS = 1_000_000
# Key, what YAML and a notebook say, where the reading code gets it, and what it gets.
CASES: list[tuple[str, Any, Callable[[Any], Any], Any]] = [
    ("source.project", "other-project", lambda o: o.change_stream.project, "other-project"),
    ("source.instance", "other", lambda o: o.change_stream.instance, "other"),
    ("source.database", "other", lambda o: o.change_stream.database, "other"),
    ("source.change_stream", "Other", lambda o: o.change_stream.change_stream, "Other"),
    ("pipeline", "payments", lambda o: o.pipeline, "payments"),
    ("state.url", "sqlite:///a b/ü.db", lambda o: unseal(o.state_url), "sqlite:///a b/ü.db"),
    ("state.keep", "90.5s", lambda o: o.keep_ns, 90_500 * MS),
    ("source.start", "earliest", lambda o: o.start, "earliest"),
    (
        "source.start",
        "2026-01-31T09:00:00.123456+01:00",
        lambda o: o.start,
        watermark_for_start(parse_rfc3339("2026-01-31T08:00:00.123456Z")),
    ),
    (
        "source.end",
        "2026-01-31T09:00:00.1Z",
        lambda o: o.end_ns,
        watermark_for_end(parse_rfc3339("2026-01-31T09:00:00.1Z")),
    ),
    ("epoch.max_span", "1500ms", lambda o: o.span_max_ns, 1_500 * MS),
    ("epoch.max_span", "1.001s", lambda o: o.span_max_ns, 1_001 * MS),
    ("epoch.max_span", "7d", lambda o: o.span_max_ns, 604_800_000 * MS),
    ("epoch.target_records", 123_456, lambda o: o.span_target.records, 123_456),
    ("epoch.target_time", "1500ms", lambda o: o.span_target.seconds, 1.5),
    ("epoch.reading", "continuous", lambda o: o.reading, Reading.CONTINUOUS),
    ("epoch.reader_memory", "16", lambda o: o.reader_memory_bytes, 16 * 1024 * 1024),
    ("epoch.heartbeat", "1500ms", lambda o: o.heartbeat_ms, 1_500),
    ("epoch.concurrent_queries", 3, lambda o: o.read.concurrent_queries, 3),
    ("epoch.proof", "record", lambda o: o.read.proof, Proof.RECORD),
    ("epoch.audit", "log", lambda o: o.read.audit, AuditMode.LOG),
    ("source.database_role", "reader", lambda o: o.change_stream.database_role, "reader"),
    ("source.priority", "low", lambda o: o.change_stream.priority, "low"),
    ("source.request_tag", 'a="b", ü', lambda o: o.change_stream.request_tag, 'a="b", ü'),
    (
        "source.directed_read",
        {"include": [{"location": "a", "type": "READ_ONLY"}]},
        lambda o: o.change_stream.directed_read,
        REPLICAS,
    ),
    ("source.directed_read", REPLICAS, lambda o: o.change_stream.directed_read, REPLICAS),
    (
        "source.directed_read",
        {
            "include_replicas": {
                "replica_selections": [{"type_": 2}],
                "auto_failover_disabled": True,
            }
        },
        lambda o: o.change_stream.directed_read,
        {"includeReplicas": {"replicaSelections": [{"type": 2}], "autoFailoverDisabled": True}},
    ),
    ("source.directed_read", "null", lambda o: o.change_stream.directed_read, None),
    ("epoch.concurrent_queries", "16.0", lambda o: o.read.concurrent_queries, 16),
    ("epoch.target_records", " 5.", lambda o: o.span_target.records, 5),
]


@pytest.mark.parametrize(
    ("key", "value", "read", "expected"), CASES, ids=lambda v: None if callable(v) else str(v)[:30]
)
def test_the_reading_code_gets_what_yaml_says_and_the_same_from_a_notebook(
    key: str, value: Any, read: Callable[[Any], Any], expected: Any, tmp_path: Path
) -> None:
    options = source_options(in_yaml(tmp_path, key, value), {})
    assert read(in_a_worker(options)) == expected
    text = value if isinstance(value, str) else json.dumps(value)
    assert read(in_a_notebook(**{BY_KEY[key].name: text, "epoch_history": "true"})) == expected


def test_every_setting_of_the_file_that_the_source_has_is_tried_above() -> None:
    assert {key for key, *_ in CASES} == set(BY_KEY)


@pytest.mark.parametrize("setting", [s for s in SETTINGS if s.key], ids=lambda s: s.name)
def test_a_setting_has_one_default(setting: Setting[Any], tmp_path: Path) -> None:
    if setting in REQUIRED or setting.key == "pipeline":
        return
    plain = in_yaml(tmp_path, "pipeline", "orders")
    value: Any = plain
    for part in str(setting.key).split("."):
        value = getattr(value, part)
    assert value == setting.default
    if setting.key != "state.url":  # A notebook without one gets a temporary store.
        written = in_a_worker(source_options(plain, {}))
        left_out = in_a_notebook(pipeline="orders", epoch_history="true")
        fields = ("keep_ns", "start", "end_ns", "span_max_ns", "span_target", "heartbeat_ms")
        for name in (*fields, "read", "change_stream"):
            assert getattr(written, name) == getattr(left_out, name), name


@given(st.integers(1_000, 604_800_000))
def test_any_span_crosses_to_the_worker_to_the_millisecond(span_ms: int) -> None:
    text = format_options({MAX_SPAN: span_ms})["max_span"]
    assert in_a_notebook(max_span=text).span_max_ns == span_ms * MS
    assert in_a_notebook(max_span=f"{span_ms}ms").span_max_ns == span_ms * MS
    assert in_a_notebook(max_span_seconds=f"{span_ms / 1_000}").span_max_ns == span_ms * MS


@given(st.integers(0, 10**15))
def test_a_duration_is_written_as_it_is_read(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


@pytest.mark.parametrize(
    ("name", "text", "read", "expected"),
    [
        ("max_span_seconds", "2", lambda o: o.span_max_ns, 2_000 * MS),
        ("max_span_seconds", "1.5", lambda o: o.span_max_ns, 1_500 * MS),
        ("keep_seconds", "3600", lambda o: o.keep_ns, 3_600_000 * MS),
        ("target_seconds", "2.5", lambda o: o.span_target, SpanTarget(1_000_000, 2.5)),
        ("heartbeat_milliseconds", "1500", lambda o: o.heartbeat_ms, 1_500),
    ],
)
def test_former_options_keep_their_names(
    name: str, text: str, read: Callable[[Any], Any], expected: Any
) -> None:
    assert read(in_a_notebook(**{name: text, "epoch_history": "true"})) == expected


def test_a_setting_under_both_its_names_is_refused() -> None:
    with pytest.raises(OptionError, match="max_span and max_span_seconds are the same setting"):
        in_a_notebook(max_span="1s", max_span_seconds="1")


# Key, a value that is refused, and a part of the reason.
REFUSED: list[tuple[str, Any, str]] = [
    ("source.project", "Shop", "project 'Shop' is no"),
    ("source.change_stream", "s'x", "is no"),
    ("pipeline", "Orders", "must match"),
    ("state.keep", "59s", "59s is outside 1m to 36500d"),
    ("source.start", "yesterday", "or write now or earliest"),
    ("source.end", "2026-01-31", "RFC 3339"),
    ("epoch.max_span", "999ms", "999ms is outside 1s to 7d"),
    ("epoch.max_span", "8d", "8d is outside 1s to 7d"),
    ("epoch.max_span", "10", "'10' is not a valid duration"),
    ("epoch.target_records", "0", "0 is outside 1 to"),
    ("epoch.target_records", "2.5", "'2.5' is not a whole number"),
    ("epoch.target_records", ".0", "'.0' is not a whole number"),
    ("epoch.target_records", "many", "'many' is not a whole number"),
    ("epoch.target_time", "2d", "2d is outside 1s to 1d"),
    ("epoch.heartbeat", "301s", "301s is outside 1s to 5m"),
    ("epoch.reading", "always", "'always' is not one of bounded, continuous"),
    ("epoch.reader_memory", "15", "15 is outside 16 to 1000000"),
    ("epoch.concurrent_queries", "1001", "1001 is outside 1 to 1000"),
    ("epoch.proof", "none", "'none' is not one of ok, record"),
    ("epoch.audit", "warn", "'warn' is not one of stop, log"),
    ("source.priority", "urgent", "'urgent' is not one of low, medium, high"),
    ("source.directed_read", "{", "is not valid JSON"),
    ("source.directed_read", '{"includ": []}', "unknown key 'includ'; did you mean 'include'?"),
    ("source.directed_read", '{"include": []}', "include or exclude"),
    (
        "source.directed_read",
        '{"exclude": [{"location": "a"}, {"tpye": "READ_ONLY"}]}',
        "exclude[1]: unknown key 'tpye'; did you mean 'type'?",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {"bogus": 1}}',
        "includeReplicas: unknown key 'bogus'; known: replicaSelections, autoFailoverDisabled",
    ),
    (
        "source.directed_read",
        '{"exclude_replicas": {"autoFailoverDisabled": true}}',
        "excludeReplicas: unknown key 'autoFailoverDisabled'; known: replicaSelections",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {"replicaSelection": []}}',
        "includeReplicas: unknown key 'replicaSelection'; did you mean 'replicaSelections'?",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {"replicaSelections": [{"tpye": "READ_ONLY"}]}}',
        "includeReplicas.replicaSelections[0]: unknown key 'tpye'; did you mean 'type'?",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {"replicaSelections": [{"type": "READ"}]}}',
        "includeReplicas.replicaSelections[0].type: 'READ' is not one of READ_WRITE, READ_ONLY",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {"replicaSelections": {"location": "a"}}}',
        "includeReplicas.replicaSelections: {'location': 'a'} is not a list of replicas",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {"autoFailoverDisabled": "true"}}',
        "includeReplicas.autoFailoverDisabled: 'true' is neither true nor false",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": [{"location": "a"}]}',
        "includeReplicas: [{'location': 'a'}] is not a mapping with replicaSelections",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {}, "excludeReplicas": {}}',
        "needs one of includeReplicas and excludeReplicas, and not both",
    ),
    (
        "source.directed_read",
        '{"includeReplicas": {}, "include_replicas": {}}',
        "a key is set twice, in two spellings",
    ),
    (
        "source.directed_read",
        '{"include": [{"type": "READ"}]}',
        "include[0].type: 'READ' is not one of READ_WRITE, READ_ONLY",
    ),
]


@pytest.mark.parametrize(("key", "value", "reason"), REFUSED, ids=lambda v: str(v)[:30])
def test_yaml_and_a_notebook_refuse_the_same_for_the_same_reason(
    key: str, value: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError) as of_yaml:
        in_yaml(tmp_path, key, value)
    assert key in of_yaml.value.message
    assert reason in of_yaml.value.message
    name = BY_KEY[key].name
    with pytest.raises(OptionError) as of_notebook:
        in_a_notebook(**{name: value})
    assert of_notebook.value.message.startswith(f"option {name}: ")
    assert reason in of_notebook.value.message
    assert of_yaml.value.user_error
    assert of_notebook.value.user_error


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(OptionError, match="lies before start"):
        in_a_notebook(start="2026-02-01T00:00:00Z", end="2026-01-01T00:00:00Z")


def test_what_is_missing_or_unknown_is_named() -> None:
    with pytest.raises(OptionError, match=r"needs the option\(s\) instance, change_stream"):
        parse_options({"project": "p", "database": "d", "instance": ""}, {})
    with pytest.raises(OptionError, match=r"no option 'max_spam'.*'max_span'"):
        in_a_notebook(max_spam="1s")
    with pytest.raises(OptionError, match="Known: project, instance"):
        in_a_notebook(zzzzzz="1s")


def test_an_option_of_the_sources_own_is_checked() -> None:
    with pytest.raises(OptionError, match="option tasks: 0 is outside"):
        in_a_notebook(tasks="0")
    with pytest.raises(OptionError, match="option traces: 'maybe' is neither true nor false"):
        in_a_notebook(traces="maybe")
    options = in_a_notebook(
        tasks="3", traces="True", generation="7", checkpoint_is_empty="true", emulator_host="h:1"
    )
    assert (options.tasks_max, options.read.traces, options.generation) == (3, True, 7)
    assert options.is_checkpoint_empty is True
    assert options.change_stream.emulator_host == "h:1"


def test_where_nobody_records_epochs_only_max_span_bounds_them() -> None:
    assert in_a_notebook(target_records="5").span_target is None


def test_without_a_store_a_query_gets_a_temporary_one() -> None:
    first, second = parse_options(NAMES, {}), parse_options(NAMES, {})
    assert not first.is_state_lasting
    assert first.state_url != second.state_url


def test_the_emulator_is_known_from_the_environment_too() -> None:
    environ = {"SPANNER_EMULATOR_HOST": "e:1"}
    assert parse_options(NAMES, environ).change_stream.emulator_host == "e:1"


_OWN = (
    shared.GENERATION,
    shared.CHECKPOINT_IS_LOST,
    shared.CHECKPOINT_WATERMARK,
    shared.CAUGHT_UP_AT,
    shared.BEGUN_EPOCH,
    shared.EPOCH_HISTORY,
)


def test_the_page_on_the_source_has_every_option_and_its_default() -> None:
    page = (DOCS / "spark-source.md").read_text()
    rows: dict[str, str] = {}
    for names, default in re.findall(r"^\| ([a-z_, ]+) \| (.*?) \|", page, re.MULTILINE):
        rows |= dict.fromkeys(names.split(", "), default)
    for setting in SETTINGS:
        for alias in setting.aliases:
            assert f"`{alias}`" in page
        if setting in _OWN:
            assert setting.name not in rows, "the program's own"
            continue
        text = rows[setting.name]
        if setting in REQUIRED:
            assert text == "required"
        elif setting is HEARTBEAT:
            defaults = re.match(r"(\w+) for bounded reading, (\w+) for continuous", text)
            assert defaults is not None
            for written, reading in zip(defaults.groups(), Reading, strict=True):
                assert setting.parse(written) == heartbeat_ms(None, reading)
        elif setting.name not in ("state_url", "tasks", "emulator_host", "checkpoint_is_empty"):
            if setting.default is None:
                assert text == "none", setting.name
            else:
                assert setting.parse(text) == setting.default, setting.name
