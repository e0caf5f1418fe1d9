"""A door before a PostgreSQL server: connections pass it, and are held back or cut at a message."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

# By what a client's message has, and by the tag with which the server says that it has done it.
_ASKED: Final = {"COMMIT": b"COMMIT\0", "MERGE": b"MERGE INTO", "COPY": b"COPY "}
_DONE: Final = {"COMMIT": b"COMMIT\0", "MERGE": b"MERGE ", "COPY": b"COPY "}


def _nothing(kind: str, part: str) -> None:
    del kind, part


class PostgresDoor:
    """The door.

    Attributes:
        url: of the database behind it.
        before: called with the kind of a statement and its part, request or answer, before that is
            passed on; if it raises, the connection is cut.
        seen: the kinds and parts.
    """

    def __init__(self, port: int, database: str) -> None:
        self.url = f"postgresql://postgres@127.0.0.1:{port}/{database}"
        self.before: Callable[[str, str], None] = _nothing
        self.seen: list[tuple[str, str]] = []

    def passing(self, data: bytes, part: str) -> None:
        """Call before() for what data has."""
        for kind, text in (_ASKED if part == "request" else _DONE).items():
            if text in data:
                self.seen.append((kind, part))
                self.before(kind, part)


@contextmanager
def door_before(url: str) -> Iterator[PostgresDoor]:
    """Open a door before the server of a URL, with a Unix socket, for one of its databases."""
    parts = urlsplit(url)
    behind = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
    doors: list[PostgresDoor] = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(behind)
                answers = threading.Thread(target=_pass, args=(server, self.request, "answer"))
                answers.start()
                _pass(self.request, server, "request")
                answers.join()

    def _pass(source: socket.socket, target: socket.socket, part: str) -> None:
        try:
            while data := source.recv(1 << 16):
                doors[0].passing(data, part)
                target.sendall(data)
        except Exception:  # noqa: BLE001 - the connection is cut
            pass
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.block_on_close = False
        doors.append(PostgresDoor(server.server_address[1], parts.path.strip("/")))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield doors[0]
        finally:
            server.shutdown()
            thread.join()
