"""The HTTP server on a real socket: whoever connects, probes are answered and little is logged."""

import base64
import http.client
import json
import os
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import ValidationError
from structlog.testing import capture_logs

from slackwater.commands.run import raise_descriptor_limit
from slackwater.config.settings import Http, Tls
from slackwater.errors import HttpError
from slackwater.monitoring.http_access import is_own, own_names
from slackwater.monitoring.status import StatusPoller
from slackwater.secrecy import masked
from tests.support.served_pages import certificate, get, served
from tests.support.waiting import wait_until

TOKEN = "a-token-of-many-characters"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slackwater.monitoring.http_server._LOOK_EVERY_S", 0.1)
        with served(tmp_path_factory.mktemp("server")) as place:
            yield place


def is_closed(connection: socket.socket, seconds_max: float = 30) -> bool:
    """Return whether the other side ends a connection, whatever it says before."""
    connection.settimeout(seconds_max)
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_a_probe_is_answered_while_hundreds_of_connections_say_nothing(
    server: tuple[str, int],
) -> None:
    before = descriptors()
    with ExitStack() as stack:
        for number in range(400):
            idle = stack.enter_context(socket.create_connection(server, timeout=20))
            if number % 2:
                idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: local")
        assert get(server, "/healthz")[0] == 200
        assert get(server, "/metrics")[0] == 200
        # The clients' ends, and the server's.
        wait_until(lambda: descriptors() - before < 400 + 150)


def test_a_probe_is_answered_while_others_ask_again_and_again_and_take_no_answer(
    server: tuple[str, int],
) -> None:
    asked = b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            with ExitStack() as stack, suppress(OSError):
                for _ in range(100):
                    lazy = stack.enter_context(socket.create_connection(server, timeout=20))
                    lazy.setblocking(False)
                    lazy.send(asked)

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        time.sleep(1)
        for _ in range(3):
            assert get(server, "/healthz")[0] == 200
    finally:
        ended.set()
        thread.join()


def test_a_request_that_is_never_whole_is_not_waited_for(
    server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.monitoring.http_server._REQUEST_S_MAX", 0.3)
    slow = socket.create_connection(server, timeout=20)
    after = socket.create_connection(server, timeout=20)
    after.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
    ended = threading.Event()

    def drip() -> None:
        try:
            while True:
                slow.sendall(b"G")
                time.sleep(0.1)
        except OSError:
            ended.set()

    threading.Thread(target=drip, daemon=True).start()
    assert is_closed(after)
    assert ended.wait(30)


def test_an_answer_that_nobody_takes_is_not_waited_for(
    server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackwater.monitoring.http_server._REQUEST_S_MAX", 0.3)
    monkeypatch.setattr("slackwater.monitoring.http_server._ANSWER_S_MAX", 0.3)
    with socket.socket() as lazy:
        before = descriptors()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2_048)
        lazy.connect(server)
        lazy.sendall(b"GET /page.js HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000)
        wait_until(lambda: descriptors() > before)
        wait_until(lambda: descriptors() <= before)


@pytest.mark.parametrize(
    "request_line",
    [
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n",
        b"GET /healthz HTTP/1.1\r\n" + b"X: " + b"x" * 100_000,
        b"".join(b"X%d: y\r\n" % number for number in range(20_000)),
    ],
)
def test_a_huge_header_ends_the_connection(request_line: bytes, server: tuple[str, int]) -> None:
    with socket.create_connection(server, timeout=20) as huge:
        huge.sendall(request_line[:30_000])
        assert is_closed(huge, 5)


def test_a_body_is_not_read_after_the_answer(server: tuple[str, int]) -> None:
    with socket.create_connection(server, timeout=20) as huge:
        huge.sendall(
            b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999999\r\n\r\n"
        )
        assert is_closed(huge, 4)


def test_a_thousand_malformed_requests_log_a_line(
    server: tuple[str, int], caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(300):
        with socket.create_connection(server, timeout=20) as wrong:
            wrong.sendall(b"\x16\x03\x01 nonsense %d\r\n\r\n" % number)
            assert is_closed(wrong)
    assert len(caplog.records) <= 2
    assert get(server, "/healthz")[0] == 200


def test_a_server_without_a_free_descriptor_logs_a_line_and_goes_on(
    server: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncio.constants.ACCEPT_RETRY_DELAY", 0.1)
    accept, until = socket.socket.accept, time.monotonic() + 0.5

    def refused(listening: socket.socket) -> Any:
        if time.monotonic() < until:
            raise OSError(24, "Too many open files")
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", refused)
    with capture_logs() as lines:
        assert get(server, "/healthz")[0] == 200
    assert time.monotonic() >= until
    assert [line["event"] for line in lines] == ["can't accept a connection"]


def test_the_server_ends_at_once_whoever_is_connected(tmp_path: Path) -> None:
    before = threading.enumerate()
    with ExitStack() as stack:
        with served(tmp_path) as place:
            for text in (b"", b"GET /hea", b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 500):
                stack.enter_context(socket.create_connection(place)).sendall(text)
            time.sleep(0.3)
            begun = time.monotonic()
        assert time.monotonic() - begun < 3
        begun_since = set(threading.enumerate()) - set(before)
        assert "http" not in {thread.name for thread in begun_since}


def test_neither_probes_nor_the_end_wait_for_a_store_that_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mended = threading.Event()
    monkeypatch.setattr(StatusPoller, "epochs", lambda *_: [] if mended.wait(60) else None)
    before = threading.enumerate()
    with ExitStack() as stack:
        with served(tmp_path) as place:
            for _ in range(60):
                asking = stack.enter_context(socket.create_connection(place, timeout=20))
                asking.sendall(
                    b"GET /api/pipelines/orders/epochs HTTP/1.1\r\nHost: localhost\r\n\r\n"
                )
            for path in ("/healthz", "/readyz", "/metrics"):
                assert get(place, path)[0] in (200, 503)
            assert get(place, "/api/pipelines/orders/epochs")[0] == 503
            begun = time.monotonic()
        assert time.monotonic() - begun < 3
        left = set(threading.enumerate()) - set(before)
        assert [thread for thread in left if not thread.daemon] == []
        mended.set()


def test_every_answer_has_the_usual_headers(server: tuple[str, int]) -> None:
    for path in ("/", "/page.js", "/healthz", "/readyz", "/metrics", "/api/pipelines", "/nowhere"):
        for host in ("localhost", "evil.example"):
            _, headers, _ = get(server, path, Host=host)
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["referrer-policy"] == "no-referrer"
            assert "server" not in headers


def test_only_who_asks_by_the_servers_own_name_is_answered(server: tuple[str, int]) -> None:
    for path in ("/api/pipelines", "/", "/metrics", "/healthz"):
        assert get(server, path, Host=socket.gethostname())[0] == 200
        status, _, body = get(server, path, Host="evil.example")
        assert status == 421
        assert "http.hosts" in body


NAMES = own_names(
    Http(
        listen="pipelines.example:8080",
        hosts=("Slackwater", "orders.cdc.svc.cluster.local", "*.orders.cdc.svc"),
    )
)


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8080",
        "127.0.0.1:8080",
        "10.1.2.3:8080",
        "[::1]:8080",
        "[fd00::7]",
        "pipelines.example",
        "slackwater.:80",
        "orders.cdc.svc.cluster.local:8080",
        "orders-0.orders.cdc.svc",
    ],
)
def test_an_address_and_a_name_of_the_settings_are_its_own(host: str) -> None:
    assert is_own(host, NAMES)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example:8080",
        "orders.cdc.svc",
        "evilorders.cdc.svc",
        "localhost@evil.example",
        "localhost:8080:8080",
        "*.orders.cdc.svc.evil.example",
        "",
    ],
)
def test_another_name_is_not_its_own(host: str) -> None:
    assert not is_own(host, NAMES)


@pytest.mark.parametrize("host", ["*", "evil.*", "a:80", "http://a", ""])
def test_a_setting_that_names_no_host_is_refused(host: str) -> None:
    with pytest.raises(ValidationError):
        Http(hosts=(host,))


def test_a_number_out_of_bounds_is_a_bad_request(server: tuple[str, int]) -> None:
    for number in ("9" * 5_000, "0", "-1", "1e3", "", "10001", "%00", "%D9%A7" * 9):
        status, _, body = get(server, f"/api/pipelines/orders/epochs?limit={number}")
        assert status == 400
        assert len(body) < 200
    assert get(server, "/api/pipelines/orders/epochs?limit=10000")[0] == 200


def test_a_token_is_asked_for_except_by_probes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with served(tmp_path, token_file=str(file)) as place:
        for path in ("/healthz", "/readyz"):
            assert get(place, path)[0] in (200, 503)
        for path in ("/", "/metrics", "/api/pipelines", "/page.js", "/nowhere"):
            status, headers, body = get(place, path)
            assert status == 401
            assert headers["www-authenticate"].startswith("Basic")
            assert "http.token_file" in body
        for good in (f"Bearer {TOKEN}", f"bearer {TOKEN}", basic(f"anyone:{TOKEN}")):
            assert get(place, "/api/pipelines", Authorization=good)[0] == 200
        for wrong in (
            TOKEN,
            "Bearer",
            f"Bearer {TOKEN}x",
            f"Digest {TOKEN}",
            basic(TOKEN),
            basic(f"{TOKEN}:"),
            "Basic %%%",
        ):
            assert get(place, "/api/pipelines", Authorization=wrong)[0] == 401
        assert TOKEN not in masked(f"Bearer {TOKEN}")
        file.write_text("another-token-of-many-characters")
        assert get(place, "/metrics", Authorization=f"Bearer {TOKEN}")[0] == 401
        file.unlink()
        another = "Bearer another-token-of-many-characters"
        assert get(place, "/metrics", Authorization=another)[0] == 200


def basic(text: str) -> str:
    return f"Basic {base64.b64encode(text.encode()).decode()}"


@pytest.mark.parametrize("text", [None, "", "\n", "short"])
def test_a_file_without_a_token_is_refused(text: str | None, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text)
    with (
        pytest.raises(HttpError, match=f"http.token_file {file} (holds|can't)"),
        served(tmp_path, token_file=str(file)),
    ):
        pass


def name_shown(place: tuple[str, int], tls: Tls) -> str:
    """Return the name in the certificate of a server that is trusted by it, and answers."""
    context = ssl.create_default_context(cafile=tls.certificate)
    connection = http.client.HTTPSConnection(*place, timeout=20, context=context)
    connection.request("GET", "/api/pipelines")
    assert json.load(connection.getresponse())[0]["pipeline"] == "orders"
    shown = connection.sock.getpeercert()
    connection.close()
    return str(cast(Any, shown)["subject"][0][0][1])


def test_answers_are_encrypted_by_the_certificate_as_it_is(tmp_path: Path) -> None:
    tls = certificate(tmp_path, "first")
    with served(tmp_path, tls=tls) as place, ExitStack() as stack, capture_logs() as lines:
        assert name_shown(place, tls) == "first"
        for number in range(200):
            silent = stack.enter_context(socket.create_connection(place, timeout=20))
            silent.sendall((b"", b"GET / HTTP/1.1\r\n\r\n")[number % 2])
        assert name_shown(place, tls) == "first"
        certificate(tmp_path, "second")
        assert name_shown(place, tls) == "second"
        Path(tls.key).write_text("broken")
        assert name_shown(place, tls) == "second"
    assert [line["event"] for line in lines] == ["the former certificate goes on"]


def test_a_certificate_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    tls = certificate(tmp_path, "first")
    Path(tls.key).write_text("broken")
    with (
        pytest.raises(HttpError, match=f"http.tls: {tls.certificate} and"),
        served(tmp_path, tls=tls),
    ):
        pass


def test_a_run_has_as_many_descriptors_as_it_may() -> None:
    child = os.fork()
    if child == 0:
        # A limit that was lowered stays so.
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 2_048))
            raise_descriptor_limit()
            raise_descriptor_limit()
        finally:
            os._exit(resource.getrlimit(resource.RLIMIT_NOFILE) != (2_048, 2_048))
    assert os.waitpid(child, 0)[1] == 0
