"""Lets pods reach a PostgreSQL server that listens at a Unix socket only."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa


@contextmanager
def forwarding(url: str) -> Iterator[str]:
    """Forward a port of this machine to a server's socket; yield the URL with the port."""
    parsed = sa.make_url(url)
    path = Path(str(parsed.query["host"])) / ".s.PGSQL.5432"
    listening = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_accept, args=(listening, path), daemon=True).start()
    reached = parsed.set(host="127.0.0.1", port=listening.getsockname()[1], query={})
    try:
        yield reached.render_as_string(hide_password=False)
    finally:
        listening.close()


def _accept(listening: socket.socket, path: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = listening.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(str(path))
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
