"""`slackwater check` names what is wrong with a set-up, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from slackwater.commands.check import Check, checks
from slackwater.config.settings import Settings
from slackwater.reader.change_stream import ChangeStream
from slackwater.testing.emulator import Emulator
from tests import services
from tests.emulators import database_on
from tests.object_stores import ServedStore, s3

KAFKA = {"kind": "kafka", "format": "json", "envelope": "key_only"}


@pytest.fixture(scope="module")
def stream(emulator: Emulator) -> ChangeStream:
    return database_on(emulator)


@pytest.fixture
def taken() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def checked(stream: ChangeStream, folder: Path, sections: dict[str, Any]) -> dict[str, Check]:
    values = services.settings(stream, folder, "now")
    for name, section in sections.items():
        values[name] = {**values.get(name, {}), **section}
    return {check.name: check for check in checks(Settings(**values))}


@pytest.mark.parametrize(
    ("sections", "name", "said"),
    [
        ({"filter": {"tables": ["Custommers"]}}, "filter", "Did you mean 'Customers'?"),
        ({"filter": {"exclude_tables": ["Nothing*"]}}, "filter", "It watches Customers"),
        ({"filter": {"columns": ["Orders.Sum"]}}, "filter", "matches no column"),
        ({"filter": {"exclude_columns": ["*.Nmae"]}}, "filter", "filter.exclude_columns: '*.Nmae'"),
        ({"filter": {"when_changed": ["Orders.OrderId"]}}, "filter", "outside the primary key"),
        ({"state": {"url": "sqlite:////dev/null/state.db"}}, "metadata store", "can't be written"),
        ({"sink": {"path": "/etc/passwd/out"}}, "sink", "/etc/passwd is not a writable folder"),
        (
            {"sink": {**KAFKA, "options": {"kafka.bootstrap.servers": "127.0.0.1:1"}}},
            "sink",
            "no Kafka broker answers at 127.0.0.1:1",
        ),
        ({"http": {"listen": "192.0.2.1:8080"}}, "http", "can't be listened on"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_a_wrong_set_up_is_named(
    sections: dict[str, Any], name: str, said: str, stream: ChangeStream, tmp_path: Path
) -> None:
    results = checked(stream, tmp_path, sections)
    wrong = {check.name: str(check.problem) for check in results.values() if check.problem}
    assert list(wrong) == [name]
    assert said in wrong[name]
    assert list(tmp_path.iterdir()) == []


def without_right(method: str, part: str = "") -> Callable[[ServedStore], None]:
    """Return what takes the right to do something from all objects whose names have a part."""

    def refuse(store: ServedStore) -> None:
        store.refuses = lambda asked, name: asked == method and part in name

    return refuse


def without_conditions(store: ServedStore) -> None:
    store.heeds_conditions = False


def as_it_is(store: ServedStore) -> None:
    del store


IN_STORE = "s3://changes/orders"


WRONG_STORES: list[tuple[dict[str, Any], Callable[[ServedStore], None], str]] = [
    ({"path": "s3://nobodys/orders"}, as_it_is, "bucket does not exist"),
    ({}, without_right("PUT"), "creating an object failed"),
    ({}, without_right("GET", "_probe"), "reading an object failed"),
    ({}, without_right("GET", "changes"), "listing the objects failed"),
    ({}, without_right("POST"), "deleting the object _probe"),
    ({}, without_conditions, "creates an object again that exists"),
    ({"aws_endpoint": "http://127.0.0.1:1"}, as_it_is, "http://127.0.0.1:1/"),
    (
        {
            "aws_access_key_id": None,
            "aws_secret_access_key": None,
            "aws_metadata_endpoint": "http://127.0.0.1:1",
        },
        as_it_is,
        "no credentials",
    ),
    ({"checkpoint": "s3a://changes/checkpoint"}, as_it_is, "no connector for s3a"),
    ({"checkpoint": "s4://changes/checkpoint"}, as_it_is, "knows no file system s4"),
    (
        {"path": "s3a://changes/o", "kind": "mirror", "format": "delta"},
        as_it_is,
        "no connector for s3a",
    ),
]


@pytest.mark.parametrize(
    ("sink", "change", "said"), WRONG_STORES, ids=[said for _, _, said in WRONG_STORES]
)
def test_what_is_wrong_with_an_object_store_is_named(
    sink: dict[str, Any],
    change: Callable[[ServedStore], None],
    said: str,
    stream: ChangeStream,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with s3() as store:
        change(store)
        options = {**store.options, **{k: v for k, v in sink.items() if k.startswith("aws")}}
        values = {"path": IN_STORE, "kind": "changelog", **sink}
        values = {name: value for name, value in values.items() if not name.startswith("aws")}
        if values["kind"] == "changelog":
            values["storage_options"] = {k: v for k, v in options.items() if v is not None}
        results = checked(stream, tmp_path, {"sink": values})
    wrong = {check.name: str(check.problem) for check in results.values() if check.problem}
    assert list(wrong) == ["sink"]
    assert said in wrong["sink"]


def test_a_right_set_up_is_said_to_be_so(stream: ChangeStream, tmp_path: Path) -> None:
    tables = {"tables": ["Order*", "Customers"], "exclude_columns": ["Customers.N*"]}
    results = checked(stream, tmp_path, {"filter": tables, "http": {"listen": "127.0.0.1:0"}})
    assert [check.problem for check in results.values()] == [None] * len(results)
    assert results["filter"].detail == "2 of 3 watched tables"
    assert list(tmp_path.iterdir()) == []


def test_a_port_that_somebody_else_has_is_named(
    stream: ChangeStream, tmp_path: Path, taken: str
) -> None:
    results = checked(stream, tmp_path, {"http": {"listen": taken}})
    assert f"{taken} can't be listened on" in str(results["http"].problem)


def test_a_port_on_which_the_pipeline_itself_runs_is_right(
    stream: ChangeStream, tmp_path: Path
) -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps([{"pipeline": "orders"}]).encode())

        def log_message(self, *arguments: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        listen = f"127.0.0.1:{server.server_port}"
        try:
            results = checked(stream, tmp_path, {"http": {"listen": listen}})
        finally:
            server.shutdown()
            thread.join()
    assert results["http"].problem is None
    assert results["http"].detail == f"{listen}, where the pipeline is running"
