"""`slackwater tail` writes the truth in commit order, complete up to each resolved line."""

import csv
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import termios
import threading
import time
from decimal import Decimal
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.api_core.exceptions import InvalidArgument
from google.cloud import spanner

from slackwater.demo.load import Load, ddl
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.transport.connection import Connection
from slackwater.spark_sink.envelopes.registry import envelopes
from slackwater.testing.emulator import Emulator
from slackwater.testing.emulator_database import database_of
from slackwater.testing.plain_client import TruthRecord, canonical
from slackwater.timestamp import format_rfc3339
from tests.support.command_line import slackwater
from tests.support.emulators import NewDatabase, database_on
from tests.support.table_rows import comparable, spanner_rows
from tests.support.truths import truth_of

SECOND_NS = 10**9


def arguments(stream: ChangeStream, *options: str) -> list[str]:
    return [
        *("tail", "--project", stream.project, "--instance", stream.instance),
        *("--database", stream.database, "--change-stream", stream.change_stream),
        *options,
    ]


def command(stream: ChangeStream, *options: str) -> list[str]:
    """Return the command of a process of its own."""
    return [sys.executable, "-m", "slackwater.cli", *arguments(stream, *options)]


def tail(stream: ChangeStream, *options: str) -> subprocess.CompletedProcess[str]:
    return slackwater(*arguments(stream, *options))


def written(
    stream: ChangeStream, dialect: Dialect, seconds: int, *, seed: int = 5
) -> tuple[str, str]:
    """Write for a while; return a cursor before it and an end_time after it."""
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    Load(stream, dialect, seed=seed).run(transactions_per_second=20, seconds=seconds)
    end_ns = connection.strong_read_timestamp_ns()
    connection.close()
    return format_rfc3339(start_ns), format_rfc3339(end_ns)


def truth_record(value: dict[str, Any]) -> TruthRecord:
    """Return a line in the envelope record as a record of the truth."""
    mods = value["mods"]
    fields = ("keys", "new_values", "old_values")
    return TruthRecord(
        value["commit_timestamp"],
        value["server_transaction_id"],
        value["record_sequence"],
        value["table_name"],
        tuple(
            (canonical(m[fields[0]]), canonical(m[fields[1]]), canonical(m[fields[2]]))
            for m in mods
        ),
        value["mod_type"],
    )


def nanoseconds(resolved: dict[str, str]) -> int:
    return int(resolved["resolved"].partition(".")[0])


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_lines_are_the_truth_in_commit_order_and_whole_up_to_each_resolved_line(
    dialect: Dialect, new_database: NewDatabase
) -> None:
    stream = new_database(dialect)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    writer = Load(stream, dialect, seed=7)
    for _ in range(60):
        writer.transaction()
    # It reads live, while partitions split, merge and move.
    load = threading.Thread(target=writer.run, kwargs={"transactions_per_second": 20, "seconds": 6})
    load.start()
    end_ns = connection.strong_read_timestamp_ns() + 7 * SECOND_NS
    done = tail(
        stream,
        *("--cursor", str(start_ns), "--end-time", format_rfc3339(end_ns)),
        *("--format", "json", "--envelope", "record", "--resolved", "0"),
    )
    load.join()
    assert (done.returncode, done.stderr) == (0, "")
    truth = truth_of(stream, start_ns, end_ns, dialect)
    records, timestamps, resolved_ns = [], [], [0]
    for line in map(json.loads, done.stdout.splitlines()):
        if "resolved" in line:
            assert nanoseconds(line) > resolved_ns[-1]
            resolved_ns.append(nanoseconds(line))
            continue
        record = line["value"]
        assert line["table"] == record["table_name"]
        records.append(truth_record(record))
        timestamps.append(record["commit_timestamp"])
        assert record["commit_timestamp"] > format_rfc3339(resolved_ns[-1])
    assert len(resolved_ns) > 1
    assert resolved_ns[-1] >= end_ns
    assert timestamps == sorted(timestamps)
    assert sorted(records) == sorted(truth.records)
    assert len(records) > 100
    assert len({p.start_timestamp for p in truth.partitions}) > 1, "no partition churned"


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_a_stream_with_mutable_key_ranges_is_read_where_the_emulator_has_them(
    dialect: Dialect, new_database: NewDatabase
) -> None:
    """Releases before 1.5.56 refuse the mode, which is then all that is shown here."""
    *tables, of_all = ddl(dialect)
    clause = "WITH" if dialect is Dialect.POSTGRESQL else "OPTIONS"
    try:
        stream = new_database(
            dialect, [*tables, f"{of_all} {clause} (partition_mode = 'MUTABLE_KEY_RANGE')"]
        )
    except InvalidArgument as refused:
        assert re.search("partition_mode is unknown|option 'partition_mode'", str(refused))  # noqa: PT017
        return
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    load = Load(stream, dialect, seed=7).run(transactions_per_second=20, seconds=6)
    end_ns = connection.strong_read_timestamp_ns()
    done = tail(
        stream,
        *("--cursor", str(start_ns), "--end-time", format_rfc3339(end_ns)),
        *("--format", "json", "--envelope", "record"),
    )
    assert (done.returncode, done.stderr) == (0, "")
    records = [json.loads(line)["value"] for line in done.stdout.splitlines()]
    assert len({record["server_transaction_id"] for record in records}) == load.transactions
    timestamps = [record["commit_timestamp"] for record in records]
    assert timestamps == sorted(timestamps)


def test_a_tail_goes_on_where_a_resolved_line_says(new_database: NewDatabase) -> None:
    stream = new_database()
    cursor, end_time = written(stream, Dialect.GOOGLE_STANDARD_SQL, 3)
    middle_ns = time.time_ns() - 2 * SECOND_NS
    options = ("--format", "json", "--envelope", "datastream", "--resolved", "1h")
    whole = tail(stream, "--cursor", cursor, "--end-time", end_time, *options)
    first = tail(stream, "--cursor", cursor, "--end-time", str(middle_ns), *options)
    *lines, last = map(json.loads, first.stdout.splitlines())
    rest = tail(stream, "--cursor", last["resolved"], "--end-time", end_time, *options)

    def uuids(text: str) -> list[str]:
        lines = map(json.loads, text.splitlines())
        return [line["value"]["uuid"] for line in lines if "value" in line]

    assert len(lines) > 1
    assert uuids(first.stdout) + uuids(rest.stdout) == uuids(whole.stdout)
    assert len(set(uuids(whole.stdout))) == len(uuids(whole.stdout)) > 50


@pytest.mark.parametrize("dialect", list(Dialect), ids=str)
def test_an_initial_scan_and_the_changes_after_it_are_the_tables_by_value(
    dialect: Dialect, new_database: NewDatabase
) -> None:
    stream = new_database(dialect)
    writer = Load(stream, dialect, seed=8)
    for _ in range(60):
        writer.transaction()
    end_ns = time.time_ns() + 5 * SECOND_NS
    # Writes go on while the rows are read.
    load = threading.Thread(target=writer.run, kwargs={"transactions_per_second": 30, "seconds": 4})
    load.start()
    done = tail(
        stream,
        *("--initial-scan", "--end-time", format_rfc3339(end_ns)),
        *("--format", "json", "--envelope", "debezium"),
    )
    load.join()
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line, parse_float=Decimal) for line in done.stdout.splitlines()]
    ops = [line["value"]["op"] for line in lines]
    scanned = ops.count("r")
    assert 20 < scanned < len(ops) - 50
    assert set(ops[:scanned]) == {"r"}
    tables: dict[str, dict[str, dict[str, Any]]] = {}
    for line in lines:
        rows, key, after = (
            tables.setdefault(line["table"], {}),
            str(line["key"]),
            line["value"]["after"],
        )
        if after is None:
            del rows[key]
        else:
            # An update has only the columns that it changed.
            rows[key] = {**rows.get(key, {}), **after}
    assert set(tables) == {"Customers", "Orders", "Payments"}
    for table, rows in tables.items():
        expected = spanner_rows(stream, dialect, table)
        written_rows = [
            {name: comparable(_from_debezium(name, value)) for name, value in row.items()}
            for row in rows.values()
        ]
        assert sorted(written_rows, key=repr) == sorted(expected, key=repr), table


def _from_debezium(column: str, value: Any) -> Any:
    """Parse the values that Debezium has as a string: NUMERIC and JSON."""
    if value is None:
        return None
    match column:
        case "Balance":
            return Decimal(value)
        case "Details":
            return json.loads(value, parse_float=Decimal)
        case _:
            return value


def test_an_initial_scan_only_reads_the_watched_columns_at_the_cursor_and_ends(
    new_database: NewDatabase,
) -> None:
    columns = "Id INT64 NOT NULL, A STRING(9), B STRING(9)"
    stream = new_database(
        statements=[
            f"CREATE TABLE One ({columns}) PRIMARY KEY (B, Id)",
            f"CREATE TABLE Two ({columns}) PRIMARY KEY (Id)",
            f"CREATE TABLE Three ({columns}) PRIMARY KEY (Id)",
            "CREATE CHANGE STREAM Parts FOR One, Two(A)",
        ],
        change_stream="Parts",
    )
    database = database_of(stream)

    def insert(number: int) -> None:
        with database.batch() as batch:
            for table in ("One", "Two", "Three"):
                batch.insert(table, ("Id", "A", "B"), [(number, f"a{number}", None)])

    for number in (3, 1, 2):
        insert(number)
    connection = Connection(stream)
    cursor_ns = connection.strong_read_timestamp_ns()
    insert(4)
    options = ("--format", "json", "--envelope", "row", "--initial-scan-only")
    done = tail(stream, "--cursor", str(cursor_ns), *options)
    assert (done.returncode, done.stderr) == (0, "")
    scanned = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["table"], line["value"]) for line in scanned] == [
        *(("One", {"Id": i, "B": None, "A": f"a{i}"}) for i in (1, 2, 3)),
        *(("Two", {"Id": i, "A": f"a{i}"}) for i in (1, 2, 3)),
    ]
    assert tail(stream, *options, "--end-time", str(cursor_ns)).returncode == 2
    assert len(tail(stream, *options, "--exclude-table", "One").stdout.splitlines()) == 4
    narrow = tail(stream, *options, "--column", "*.A", "--exclude-column", "Two.A").stdout
    rows = [json.loads(line)["value"] for line in narrow.splitlines()]
    assert rows[0] == {"Id": 1, "B": None, "A": "a1"}
    assert rows[-1] == {"Id": 4}


def test_a_table_without_key_columns_is_told_of_in_every_envelope(
    new_database: NewDatabase,
) -> None:
    stream = new_database(
        statements=[
            "CREATE TABLE One (A STRING(MAX), B STRING(MAX)) PRIMARY KEY ()",
            "CREATE CHANGE STREAM S FOR ALL",
        ],
        change_stream="S",
    )
    database = database_of(stream)
    connection = Connection(stream)
    start_ns = connection.strong_read_timestamp_ns()
    with database.batch() as batch:
        batch.insert("One", ["A", "B"], [["ä\u2028", "b"]])
    with database.batch() as batch:
        batch.delete("One", spanner.KeySet(all_=True))
    bounds = ("--cursor", str(start_ns), "--end-time")
    end_time = format_rfc3339(connection.strong_read_timestamp_ns())
    connection.close()
    for envelope, line_format in zip(envelopes(), cycle(("json", "text", "csv")), strict=False):
        options = ("--format", line_format, "--envelope", envelope, "--exclude-column", "*.B")
        done = tail(stream, *bounds, end_time, *options)
        assert done.returncode == 0, (envelope, line_format, done.stderr)
        assert ("ä" in done.stdout) == (envelope != "key_only"), (envelope, line_format)
        assert "'b'" not in done.stdout
    # An output that says that it is not UTF-8: lines are, all the same.
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ascii_only = subprocess.run(
        command(stream, *bounds, end_time, "--format", "json", "--envelope", "record"),
        capture_output=True,
        env=environ,
        timeout=60,
        check=False,
    )
    assert ascii_only.returncode == 0, ascii_only.stderr
    lines = [json.loads(line) for line in ascii_only.stdout.split(b"\n") if b'"mods"' in line]
    inserted, deleted = (line["value"]["mods"] for line in lines)
    values = '{"A":"ä\u2028","B":"b"}'
    assert inserted == [{"keys": "{}", "new_values": values, "old_values": "{}"}]
    assert deleted == [{"keys": "{}", "new_values": "{}", "old_values": values}]


def test_csv_and_text_lines_of_chosen_tables(new_database: NewDatabase, tmp_path: Path) -> None:
    stream = new_database()
    cursor, end_time = written(stream, Dialect.GOOGLE_STANDARD_SQL, 3)
    config = tmp_path / "slackwater.yaml"
    names = ("project", "instance", "database", "change_stream")
    source = {name: getattr(stream, name) for name in names}
    sink = {"path": str(tmp_path / "out"), "checkpoint": str(tmp_path / "checkpoint")}
    config.write_text(yaml.safe_dump({"pipeline": "orders", "source": source, "sink": sink}))

    def lines(*options: str) -> list[str]:
        bounds = ("--cursor", cursor, "--end-time", end_time)
        done = slackwater("tail", "-c", str(config), *bounds, *options)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    rows = list(csv.reader(lines("--format", "csv", "--table", "Cust*", "--resolved", "0")))
    assert rows[0] == ["table", "key", "value"]
    changes = [row for row in rows[1:] if row[0] != "NULL"]
    assert {row[0] for row in changes} == {"Customers"}
    assert all(list(json.loads(row[2])) == ["after"] for row in changes)
    assert rows[-1][:2] == ["NULL", "NULL"]
    assert list(json.loads(rows[-1][2])) == ["resolved"]
    narrow = lines("--format", "json", "--column", "Customers.Name", "--table", "Cust*")
    names_written = {name for line in narrow for name in json.loads(line)["value"]["after"] or ()}
    assert names_written == {"CustomerId", "Name"}
    form = ("--format", "json", "--envelope", "enriched", "--updated")
    enriched = lines(*form, "--enriched-properties", "source", "--table", "Customers")
    for line, row in zip(map(json.loads, enriched), changes, strict=True):
        assert list(line["key"].values()) == json.loads(row[1])
        source = line["value"]["source"]
        assert (source["changefeed_sink"], source["table_name"]) == ("sinkless buffer", "Customers")
        assert source["ts_hlc"] == f"{source['ts_ns']}.0000000000"
    text = lines("--envelope", "key_only", "--table", "Customers")
    assert [line.split(" ", 3)[2:] for line in text] == [row[:2] for row in changes]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_at_once_with_whole_lines(
    number: signal.Signals, new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    cursor, _ = written(stream, Dialect.GOOGLE_STANDARD_SQL, 2)
    out, error, temporary = (tmp_path / name for name in ("out", "error", "temporary"))
    temporary.mkdir()
    with out.open("wb") as stdout, error.open("wb") as stderr:
        running = subprocess.Popen(
            command(stream, "--cursor", cursor, "--format", "json"),
            stdout=stdout,
            stderr=stderr,
            env=os.environ | {"TMPDIR": str(temporary)},
        )
    until = time.monotonic() + 240
    while out.read_text().count("\n") <= 10:
        assert time.monotonic() < until
        time.sleep(0.05)
    running.send_signal(number)
    assert running.wait(120) == 0
    assert error.read_text() == ""
    assert out.read_text().endswith("\n")
    assert len([json.loads(line) for line in out.read_text().splitlines()]) > 10
    assert list(temporary.iterdir()) == []


def test_a_signal_ends_it_though_its_reader_does_not_read(
    new_database: NewDatabase, tmp_path: Path
) -> None:
    stream = new_database()
    cursor, _ = written(stream, Dialect.GOOGLE_STANDARD_SQL, 2)
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1)
    running = subprocess.Popen(
        command(stream, "--cursor", cursor, "--format", "json"),
        stdout=writer,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    os.close(writer)
    until = time.monotonic() + 240
    while int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder) < size:
        assert time.monotonic() < until
        time.sleep(0.05)
    running.send_signal(signal.SIGTERM)
    running.send_signal(signal.SIGINT)
    assert running.wait(120) == 0
    assert list(tmp_path.iterdir()) == []
    os.close(reader)


def test_a_closed_pipe_ends_it_though_nothing_more_is_written(new_database: NewDatabase) -> None:
    stream = new_database()
    cursor, _ = written(stream, Dialect.GOOGLE_STANDARD_SQL, 1)
    running = subprocess.Popen(
        command(stream, "--cursor", cursor), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert running.stdout is not None
    assert running.stderr is not None
    assert b"after" in running.stdout.readline()
    running.stdout.close()
    assert running.wait(120) == 0
    assert running.stderr.read() == b""


@pytest.fixture(scope="module")
def empty(emulator: Emulator) -> ChangeStream:
    return database_on(emulator)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--cursor", "yesterday"), "--cursor: 'yesterday' is not an RFC 3339 timestamp"),
        (("--column", "Name"), "--column: 'Name' can't name a column"),
        (("--resolved", "soon"), "--resolved: 'soon' is not a valid duration"),
        (("--envelope", "flat", "--updated"), "can't be used with --envelope flat"),
        (("--envelope", "enriched", "--updated"), "--enriched-properties source"),
        (("--envelope", "letter"), "letter"),
        (("--change-stream", "Nothing"), "Nothing"),
        (("--cursor", "2026-01-01T00:00:00Z", "--end-time", "2025-01-01T00:00:00Z"), "lies before"),
        (("--cursor", "2020-01-01T00:00:00Z"), "Use another --cursor, 20"),
        (("--cursor", "2200-01-01T00:00:00Z"), "Use another --cursor; without one it starts now"),
        (("--end-time", "2020-01-01T00:00:00Z", "--table", "orders"), "Did you mean 'Orders'?"),
        (("--end-time", "2020-01-01T00:00:00Z"), "Use a --cursor before it"),
    ],
)
def test_a_wrong_option_is_named_with_exit_code_2(
    options: tuple[str, ...], message: str, empty: ChangeStream
) -> None:
    done = tail(empty, *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_names_it_says_how_to_name_the_change_stream() -> None:
    done = slackwater("tail", "--project", "p")
    assert done.returncode == 2
    assert "missing: --instance, --database, --change-stream" in done.stderr
    assert "--instance NAME --database NAME --change-stream NAME" in done.stderr
