"""`slackwater tail` of Bigtable: each change once, live, through splits, merges and breaks."""

import csv
import json
import time
from base64 import b64decode
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from slackwater.timestamp import format_rfc3339, parse_rfc3339, us_to_ns
from tests.support.command_line import slackwater
from tests.synthetic.bigtable.faults import Fault, Faults
from tests.synthetic.bigtable.history import Change, History, SetCell, Shape, Tablet, generate
from tests.synthetic.bigtable.server import SyntheticBigtable, bigtable_process

SECOND_US = 1_000_000


def settings_file(host: str, folder: Path) -> Path:
    names = {"project": "project", "instance": "instance", "table": "table"}
    file = folder / "clicks.yaml"
    settings = {
        "pipeline": "clicks",
        "source": {"kind": "bigtable", **names, "endpoint": host, "plaintext": True},
        "sink": {"path": str(folder / "out"), "checkpoint": str(folder / "checkpoint")},
        "state": {"url": f"sqlite:///{folder / 'state.db'}"},
    }
    file.write_text(yaml.safe_dump(settings))
    return file


def time_of(time_us: int) -> str:
    return format_rfc3339(us_to_ns(time_us))


def test_json_lines_have_each_change_once_live_and_nothing_is_stored(tmp_path: Path) -> None:
    start_us = time.time_ns() // 1_000 - 3 * SECOND_US
    shape = Shape(start_us=start_us, seconds=12, churn_per_s=2, clusters=2, large=0.05)
    faults = Faults(3, 0.3, kinds=(Fault.BREAK, Fault.LOST_CLOSE, Fault.HALF))
    with bigtable_process(partial(generate, 5, shape), faults) as host:
        file = settings_file(host, tmp_path)
        done = slackwater(
            *("tail", "-c", str(file), "--format", "json", "--resolved", "0"),
            *("--cursor", time_of(start_us), "--end-time", time_of(shape.end_us + SECOND_US)),
        )
    assert (done.returncode, done.stderr) == (0, "")
    lines, resolved, commits = Counter[Any](), [0], defaultdict(list)
    for line in map(json.loads, done.stdout.splitlines()):
        if "resolved" in line:
            resolved.append(int(line["resolved"].partition(".")[0]))
            continue
        value = line["value"]
        assert (line["table"], line["key"]) == ("table", value["row_key"])
        written = as_written(value)
        commits[value["row_key"], value["source_cluster_id"]].append(written[1])
        lines[written] += 1
    assert lines == Counter(map(as_expected, generate(5, shape).changes))
    assert all(times == sorted(times) for times in commits.values())
    assert resolved == sorted(set(resolved))
    assert resolved[-1] >= us_to_ns(shape.end_us + SECOND_US)
    # It is live: there are many epochs.
    assert len(resolved) > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name]


def as_written(value: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a line in JSON says of a change."""
    cells = tuple(
        (entry["family"], b64decode(entry["value"]))
        for entry in value["entries"]
        if entry["kind"] == "SET_CELL"
    )
    commit_us = parse_rfc3339(value["commit_timestamp"]) // 1_000
    rest = (value["tiebreaker"], value["source_cluster_id"], value["type"])
    return (b64decode(value["row_key"]), commit_us, *rest, len(value["entries"]), cells)


def as_expected(change: Change) -> tuple[Any, ...]:
    kind = "GARBAGE_COLLECTION" if change.is_garbage_collection else "USER"
    cells = tuple((e.family, e.value) for e in change.entries if isinstance(e, SetCell))
    rest = (change.tie_breaker, change.cluster or None, kind)
    return (change.row_key, change.commit_us, *rest, len(change.entries), cells)


def small_history() -> History:
    """Two changes of a while ago: of a text, and of bytes that are none."""
    at_us = time.time_ns() // 1_000 - 9 * SECOND_US
    readable = SetCell("info", b"name", at_us, "Zoë\n".encode())
    others = SetCell("info", b"\xff", at_us, b"\x00\xfe")
    return History(
        [
            Change(at_us + 1, at_us + 1, b"user#1", 7, "one", False, (readable,)),
            Change(at_us + 2, at_us + 2, b"\xffuser", 8, "", True, (others,)),
        ],
        (Tablet(b"", b"", at_us),),
    )


def test_a_line_of_text_is_readable_and_one_of_csv_exact(tmp_path: Path) -> None:
    history = small_history()
    end_time = time_of(history.created_us + SECOND_US)
    bounds = ("--cursor", time_of(history.created_us), "--end-time", end_time)
    with SyntheticBigtable(history) as server:
        names = ("--project", "project", "--instance", "instance", "--table", "table")
        place = ("--source", f"endpoint={server.host}", "--source", "plaintext=true")
        text = slackwater("tail", *names, *place, *bounds)
        exact = slackwater("tail", *names, *place, *bounds, "--format", "csv")
    assert (text.returncode, text.stderr) == (0, "")
    at_us = history.created_us
    cell = f'"timestamp_micros":{at_us},"value":'
    assert text.stdout.splitlines() == [
        f'{time_of(at_us + 1)} USER table "user#1"'
        f' [{{"kind":"SET_CELL","family":"info","qualifier":"name",{cell}"Zoë\\n"}}]',
        f'{time_of(at_us + 2)} GARBAGE_COLLECTION table "\\\\xffuser"'
        f' [{{"kind":"SET_CELL","family":"info","qualifier":"\\\\xff",{cell}"\\\\x00\\\\xfe"}}]',
    ]
    header, first, second = csv.reader(exact.stdout.splitlines())
    assert header == ["table", "key", "value"]
    assert [b64decode(json.loads(key)) for _, key, _ in (first, second)] == [b"user#1", b"\xffuser"]
    value = json.loads(second[2])
    assert b64decode(value["entries"][0]["value"]) == b"\x00\xfe"
    assert (value["row_key_text"], value["partition"]) == (None, "[, )")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--initial-scan",), "not for Bigtable's: initial scan."),
        (("--updated", "--table", "Cust*"), "not for Bigtable's: updated, tables."),
        (("--envelope", "debezium"), "not for Bigtable's: envelope."),
        (("--database", "shop"), "bigtable_changes has no option 'database'"),
    ],
)
def test_an_option_that_is_spanners_is_refused(
    options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    refused = slackwater("tail", "-c", str(settings_file("localhost:1", tmp_path)), *options)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr


def test_a_table_that_does_not_exist_ends_it_with_its_name(tmp_path: Path) -> None:
    with SyntheticBigtable(small_history()) as server:
        file = settings_file(server.host, tmp_path)
        file.write_text(file.read_text().replace("table: table", "table: other"))
        failed = slackwater("tail", "-c", str(file))
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "tables/other" in failed.stderr


@pytest.mark.long
def test_a_server_that_does_not_answer_ends_it_with_its_name(tmp_path: Path) -> None:
    failed = slackwater("tail", "-c", str(settings_file("localhost:1", tmp_path)))
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "that localhost:1 answers" in failed.stderr
