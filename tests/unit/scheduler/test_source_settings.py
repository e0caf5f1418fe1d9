"""A setting of the source is the same in YAML, in a notebook and where it acts."""

import json
import pickle
import re
from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slackwater.config.load import load_settings
from slackwater.config.settings import Settings
from slackwater.endpoint import EndpointError, plaintext
from slackwater.errors import SettingsError
from slackwater.pipeline.source import source_options
from slackwater.scheduler.epoch import watermark_for_end, watermark_for_start
from slackwater.scheduler.epoch_span import SpanTarget
from slackwater.scheduler.errors import OptionError
from slackwater.scheduler.notebook_options import parse_options
from slackwater.scheduler.options import StreamOptions, from_option, hand_over
from slackwater.scheduler.read_options import AuditMode, Proof, Reading
from slackwater.scheduler.source_settings import (
    NotebookOptions,
    ReadingSettings,
    StreamSettings,
)
from slackwater.sealing import unseal
from slackwater.timestamp import format_duration_ms, parse_duration_ms, parse_rfc3339
from tests.support.repository import DOCS

NAMES = {
    "project": "shop-prod",
    "instance": "main",
    "database": "shop",
    "change_stream": "all_changes",
}
SINK = {"path": "out/changes", "checkpoint": "out/checkpoint"}
# The settings that the file and a notebook have, by their keys in the file.
OPTIONS = {
    **{f"source.{name}": name for name in StreamSettings.model_fields},
    **{f"epoch.{name}": name for name in ReadingSettings.model_fields},
    "pipeline": "pipeline",
    "state.url": "state_url",
    "state.keep": "keep",
}
# What some of them need beside them.
COMPANIONS = {
    "source.plaintext": {"endpoint": "h:1"},
    "source.anonymous": {"endpoint": "h:1"},
    "source.client_certificate": {"client_key": "k"},
    "source.client_key": {"client_certificate": "c"},
}
REQUIRED = [name for name, field in NotebookOptions.model_fields.items() if field.is_required()]


def in_yaml(tmp_path: Path, key: str, value: Any) -> Settings:
    """The settings of a file that sets one key."""
    values: dict[str, Any] = {"pipeline": "orders", "source": dict(NAMES), "sink": SINK}
    values["source"] |= COMPANIONS.get(key, {})
    section, _, name = key.rpartition(".")
    (values.setdefault(section, {}) if section else values)[name] = value
    path = tmp_path / "slackwater.yaml"
    path.write_text(yaml.safe_dump(values))
    return load_settings(path, {})


def in_a_worker(options: Mapping[str, str]) -> StreamOptions:
    """Return what Spark's workers get of options, parsed in one process, pickled to the others."""
    # Spark keeps the names of options in lower case only sometimes.
    upper = {name.upper(): text for name, text in options.items()}
    parsed = from_option(upper) or parse_options(upper, {})
    again: StreamOptions = pickle.loads(pickle.dumps(parsed))
    return again


def in_a_notebook(**options: str) -> StreamOptions:
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
    ("source.endpoint", "h:1", lambda o: o.change_stream.endpoint.target, "h:1"),
    ("source.endpoint", "[::1]", lambda o: o.change_stream.endpoint.target, "[::1]:443"),
    *(
        (f"source.{name}", True, attrgetter(f"change_stream.endpoint.{name}"), True)
        for name in ("plaintext", "anonymous")
    ),
    *(
        (f"source.{name}", "x y", attrgetter(f"change_stream.endpoint.{name}"), "x y")
        for name in (
            *("ca_certificate", "client_certificate", "client_key", "credentials_file"),
            *("impersonate_service_account", "quota_project"),
        )
    ),
    (
        "source.universe_domain",
        "example.org",
        lambda o: o.change_stream.endpoint.target,
        "spanner.example.org:443",
    ),
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
    assert read(in_a_worker(hand_over(options))) == expected
    text = value if isinstance(value, str) else json.dumps(value)
    # A notebook records no epochs that could bound the next ones.
    if not key.startswith("epoch.target_"):
        beside = COMPANIONS.get(key, {})
        assert read(in_a_notebook(**beside, **{OPTIONS[key]: text})) == expected


def test_every_setting_of_the_file_that_the_source_has_is_tried_above() -> None:
    assert {key for key, *_ in CASES} == set(OPTIONS)


def test_settings_that_are_left_out_are_the_same_in_a_file_and_in_a_notebook(
    tmp_path: Path,
) -> None:
    written = in_a_worker(hand_over(source_options(in_yaml(tmp_path, "pipeline", "orders"), {})))
    left_out = in_a_notebook(pipeline="orders")
    fields = ("keep_ns", "start", "end_ns", "span_max_ns", "reading", "heartbeat_ms", "read")
    for name in (*fields, "reader_memory_bytes", "change_stream"):
        assert getattr(written, name) == getattr(left_out, name), name
    assert written.span_target == SpanTarget(1_000_000, 30.0)


@given(st.integers(1_000, 604_800_000))
def test_any_span_is_taken_to_the_millisecond(span_ms: int) -> None:
    text = format_duration_ms(span_ms)
    assert in_a_notebook(max_span=text).span_max_ns == span_ms * MS
    assert in_a_notebook(max_span=f"{span_ms}ms").span_max_ns == span_ms * MS


@given(st.integers(0, 10**15))
def test_a_duration_is_written_as_it_is_read(duration_ms: int) -> None:
    assert parse_duration_ms(format_duration_ms(duration_ms)) == duration_ms


# Key, a value that is refused, and a part of the reason.
REFUSED: list[tuple[str, Any, str]] = [
    ("source.project", "Shop", "project 'Shop' is not a valid name"),
    ("source.instance", "main/other", "instance 'main/other' is not a valid name"),
    *(
        ("source.change_stream", name, "is not a valid name")
        for name in ("s'x", 's"; DROP TABLE t', "1st", "all-changes", "s" * 129)
    ),
    *(
        ("pipeline", name, "must match")
        for name in ("Orders", "-orders", "o" * 64, "a b", "orders\n")
    ),
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
    ("epoch.heartbeat", "999ms", "999ms is outside 1s to 5m"),
    ("epoch.heartbeat", "301s", "301s is outside 1s to 5m"),
    ("epoch.reading", "always", "should be 'bounded' or 'continuous'"),
    ("epoch.reader_memory", "15", "15 is outside 16 to 1000000"),
    ("epoch.concurrent_queries", "1001", "1001 is outside 1 to 1000"),
    ("epoch.proof", "none", "should be 'ok' or 'record'"),
    ("epoch.audit", "warn", "should be 'stop' or 'log'"),
    ("source.priority", "urgent", "should be 'low', 'medium' or 'high'"),
    ("source.endpoint", "https://h:1", "is not HOST or HOST:PORT"),
    ("source.endpoint", "h:1:2", "is not HOST or HOST:PORT"),
    ("source.directed_read", "{", "is not valid JSON"),
    ("source.directed_read", '{"includ": []}', "unknown key 'includ'; did you mean 'include'?"),
    ("source.directed_read", '{"include": []}', "include or exclude"),
    ("source.directed_read", "{}", "include or exclude"),
    (
        "source.directed_read",
        '{"include": [{"location": "a"}], "exclude": [{"location": "b"}]}',
        "include or exclude",
    ),
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
    name = OPTIONS[key]
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
    with pytest.raises(OptionError, match=r"Known: .*project, instance"):
        in_a_notebook(zzzzzz="1s")


def test_an_option_of_the_sources_own_is_checked() -> None:
    with pytest.raises(OptionError, match="option tasks: 0 is outside"):
        in_a_notebook(tasks="0")
    with pytest.raises(OptionError, match="option traces: Input should be a valid boolean"):
        in_a_notebook(traces="maybe")
    options = in_a_notebook(tasks="3", traces="True", checkpoint_is_empty="true")
    assert (options.tasks_max, options.read.traces) == (3, True)
    assert options.is_checkpoint_empty is True


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"plaintext": "true"}, "plaintext needs an endpoint"),
        ({"anonymous": "true"}, "anonymous needs an endpoint"),
        ({"client_key": "k"}, "client_certificate and client_key go together"),
        (
            {"endpoint": "h", "plaintext": "true", "ca_certificate": "c"},
            "ca_certificate does not go with plaintext",
        ),
        (
            {"endpoint": "h", "plaintext": "true", "credentials_file": "c"},
            "credentials_file does not go with plaintext",
        ),
        (
            {"endpoint": "h", "anonymous": "true", "quota_project": "p"},
            "quota_project does not go with anonymous",
        ),
    ],
)
def test_what_does_not_go_together_of_an_endpoint_is_refused(
    options: dict[str, str], reason: str
) -> None:
    with pytest.raises(OptionError, match=reason):
        in_a_notebook(**options)


def test_all_options_that_are_wrong_are_named() -> None:
    with pytest.raises(OptionError, match=r"option proof: .*; option tasks: 0 is outside"):
        in_a_notebook(tasks="0", proof="none")


def test_where_nobody_records_epochs_only_max_span_bounds_them() -> None:
    assert in_a_notebook(target_records="5").span_target is None


def test_without_a_store_a_query_gets_a_temporary_one() -> None:
    first, second = parse_options(NAMES, {}), parse_options(NAMES, {})
    assert not first.is_state_lasting
    assert first.state_url != second.state_url


def test_the_emulator_is_known_from_the_environment() -> None:
    environ = {"SPANNER_EMULATOR_HOST": "e:1"}
    assert parse_options(NAMES, environ).change_stream.endpoint == plaintext("e:1")
    same = parse_options({**NAMES, "endpoint": "e:1", "plaintext": "true"}, environ)
    assert same.change_stream.endpoint == plaintext("e:1")
    with pytest.raises(EndpointError, match=r"endpoint is s:1, and SPANNER_EMULATOR_HOST is e:1"):
        parse_options({**NAMES, "endpoint": "s:1"}, environ)


def test_the_page_on_the_source_has_every_option_and_its_default() -> None:
    page = (DOCS / "spark-source.md").read_text()
    rows: dict[str, str] = {}
    for names, default in re.findall(r"^\| ([a-z_, ]+) \| (.*?) \|", page, re.MULTILINE):
        rows |= dict.fromkeys(names.split(", "), default)
    del rows["option"]
    assert rows.keys() == NotebookOptions.model_fields.keys()
    assert [name for name, default in rows.items() if default == "required"] == REQUIRED
    defaults = re.match(r"(\w+) for bounded reading, (\w+) for continuous", rows["heartbeat"])
    assert defaults is not None
    for written, reading in zip(defaults.groups(), Reading, strict=True):
        assert parse_duration_ms(written) == StreamSettings.heartbeats_ms[reading]
    in_words = {"heartbeat", "state_url", "tasks", "checkpoint_is_empty"}
    for name in rows.keys() - set(REQUIRED) - in_words:
        default = NotebookOptions.model_fields[name].default
        if default is None:
            assert rows[name] == "none", name
        else:
            values = {**dict.fromkeys(REQUIRED, "some-name"), name: rows[name]}
            values["change_stream"] = "Changes"
            assert getattr(NotebookOptions.model_validate(values), name) == default, name
