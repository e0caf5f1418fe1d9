"""Google's credentials reach the endpoint with each request, over TLS only."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.auth import impersonated_credentials
from google.auth.exceptions import RefreshError
from google.oauth2 import service_account

from slackwater.endpoint import Endpoint
from slackwater.google_credentials import google_credentials, token_headers
from slackwater.reader.bigtable.partition_read import PartitionRead
from slackwater.reader.bigtable.positions import reads_of, starting_at
from slackwater.reader.bigtable.row_range import WHOLE_TABLE
from slackwater.reader.bigtable.service import BigtableService
from slackwater.reader.bigtable.table import BigtableTable
from slackwater.reader.change_stream import ChangeStream, Dialect
from slackwater.reader.database.key_range_read import read_whole_range
from slackwater.reader.database.snapshot_read import snapshot, snapshot_part
from slackwater.reader.database.watched_tables import Table
from slackwater.reader.errors import PermissionDeniedError, UnauthenticatedError
from slackwater.reader.transport.connection import Connection, PartitionedRead
from slackwater.reader.transport.stream_call import CallError
from tests.support.grpc_servers import answering
from tests.support.tls_door import server_side, tls_door


@contextmanager
def spanner() -> Iterator[tuple[list[dict[str, str]], str]]:
    """Run a server that refuses all; yield the metadata of each request, and HOST:PORT."""
    seen: list[dict[str, str]] = []

    def refuse(details: Any, _request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(dict(details.invocation_metadata))
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "seen")
        raise AssertionError

    with answering(refuse) as host:
        yield seen, host


@contextmanager
def token_server() -> Iterator[str]:
    """Run a server that gives the tokens token-1, token-2, ...; yield its URL."""
    numbers = iter(range(1, 100))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            answer = {"access_token": f"token-{next(numbers)}", "expires_in": 3600}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/token"
        finally:
            server.shutdown()
            thread.join()


def key_file(folder: Path, token_uri: str, **more: str) -> str:
    """Write a service account's key."""
    key = trustme.CA(key_type=trustme.KeyType.RSA).private_key_pem.bytes().decode()
    content = {"type": "service_account", "client_email": "reader@p.iam.gserviceaccount.com"}
    content |= {"private_key": key, "private_key_id": "1", "token_uri": token_uri, **more}
    new = folder / "key.new"
    new.write_text(json.dumps(content))
    return str(new.rename(folder / "key.json"))


def refused(connection: Connection) -> None:
    """Make a call of grpcio's, and one of libcurl's."""
    with pytest.raises(PermissionDeniedError, match="seen"):
        connection.query("SELECT 1")
    with pytest.raises(CallError, match="PERMISSION_DENIED: seen"):
        list(connection._channels.start("/any/Stream", b"", (("database", "d"),)))


def test_a_token_and_the_quota_project_go_with_each_request_and_a_new_key_is_used(
    tmp_path: Path,
) -> None:
    authority, trusted = trustme.CA(), tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    context = server_side(authority.issue_cert("127.0.0.1"))
    with spanner() as (seen, host), tls_door(host, context) as door, token_server() as tokens:
        endpoint = Endpoint(
            door.host,
            ca_certificate=str(trusted),
            credentials_file=key_file(tmp_path, tokens),
            quota_project="of-the-quota",
        )
        stream = ChangeStream("p12345", "main", "shop", "Orders", endpoint=endpoint)
        connection = Connection(stream)
        refused(connection)
        refused(connection)
        key_file(tmp_path, tokens)
        refused(connection)
        connection.close()
    sent = [(m["authorization"], m["x-goog-user-project"]) for m in seen]
    first, second = ("Bearer token-1", "of-the-quota"), ("Bearer token-2", "of-the-quota")
    assert sent == [first] * 4 + [second] * 2
    assert [m.get("database") for m in seen] == [None, "d"] * 3


def test_a_token_that_can_not_be_had_is_an_error_of_the_reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RefreshError("no token today")

    monkeypatch.setattr(service_account.Credentials, "refresh", fail)
    monkeypatch.setattr(Connection, "_session_name", lambda _: "session")
    endpoint = Endpoint("127.0.0.1:9", credentials_file=key_file(tmp_path, "http://127.0.0.1:9/"))
    connection = Connection(ChangeStream("p12345", "main", "shop", "Orders", endpoint=endpoint))
    service = BigtableService(BigtableTable("p12345", "orders", "orders", endpoint=endpoint))
    table, dialect = Table("Orders", {"Id": "STRING(9)"}, ("Id",)), Dialect.GOOGLE_STANDARD_SQL
    part = PartitionedRead("session", b"transaction")
    [read] = reads_of(starting_at([WHOLE_TABLE], 1))
    for work in (
        lambda: list(snapshot(connection, dialect, table, 1)),
        lambda: list(snapshot_part(connection, dialect, table, 1, read=part, token=b"part")),
        lambda: read_whole_range(connection, table, None, ("1",), 1),
        lambda: PartitionRead(service, read, 1, 1_000, lambda _: None).run(),
    ):
        with pytest.raises(UnauthenticatedError, match="no token today"):
            work()


def test_calls_that_begin_at_once_fetch_one_token(tmp_path: Path) -> None:
    with token_server() as tokens, ThreadPoolExecutor(8) as pool:
        endpoint = Endpoint(credentials_file=key_file(tmp_path, tokens))
        credentials = google_credentials(endpoint, ["spanner"])
        sent = list(pool.map(lambda _: token_headers(credentials), range(8)))
    assert all("authorization: Bearer token-1" in headers for headers in sent)


def test_no_credentials_are_sent_without_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with spanner() as (seen, host), token_server() as tokens:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", key_file(tmp_path, tokens))
        endpoint = Endpoint(host, plaintext=True)
        refused(Connection(ChangeStream("p12345", "main", "shop", "Orders", endpoint=endpoint)))
    assert not any("authorization" in metadata for metadata in seen)


def test_another_account_is_acted_as(tmp_path: Path) -> None:
    endpoint = Endpoint(
        credentials_file=key_file(tmp_path, "https://example.org/token"),
        impersonate_service_account="other@p.iam.gserviceaccount.com",
        quota_project="of-the-quota",
    )
    made = google_credentials(endpoint, ["spanner"])
    assert isinstance(made, impersonated_credentials.Credentials)
    assert made.service_account_email == "other@p.iam.gserviceaccount.com"
    assert made.quota_project_id == "of-the-quota"


def test_credentials_are_of_the_universe_that_is_named(tmp_path: Path) -> None:
    file = key_file(tmp_path, "https://example.org/token", universe_domain="example.org")
    endpoint = Endpoint(credentials_file=file, universe_domain="example.org")
    assert isinstance(google_credentials(endpoint, ["spanner"]), service_account.Credentials)
    assert endpoint.target == "spanner.example.org:443"
    wrong = Endpoint(credentials_file=file, universe_domain="example.com")
    stream = ChangeStream("p12345", "main", "shop", "Orders", endpoint=wrong)
    with pytest.raises(UnauthenticatedError, match=r"example\.org, and universe_domain is example"):
        Connection(stream).query("SELECT 1")
