"""TCP ports that lead to other servers: what passes can be seen, held back and cut."""

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import sqlalchemy as sa

# Is called with what passes, and whether it is the server's; if it raises, the connection is cut.
See = Callable[[bytes, bool], None]


@contextmanager
def tunnel(connect: Callable[[socket.socket], socket.socket | None], see: See) -> Iterator[int]:
    """Serve a port of this machine while the context is open; yield its number.

    Args:
        connect: gets a client's connection, and returns one to the server; None refuses it.
        see: see See.
    """

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            server = connect(client)
            if server is None:
                return
            with server:
                answers = threading.Thread(target=_pass, args=(server, client, see, True))
                answers.start()
                _pass(client, server, see, False)
                answers.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        listening.block_on_close = False
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        try:
            yield listening.server_address[1]
        finally:
            listening.shutdown()
            thread.join()


def cut(*ends: socket.socket) -> None:
    """Shut connections down, whoever waits at them."""
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def postgres_socket(url: sa.URL) -> socket.socket:
    """Return a connection to a PostgreSQL server whose URL has the folder of its socket."""
    server = socket.socket(socket.AF_UNIX)
    server.connect(str(Path(str(url.query["host"])) / ".s.PGSQL.5432"))
    return server


@contextmanager
def port_of(url: str) -> Iterator[str]:
    """Let a PostgreSQL server that listens at a socket be reached by a port; yield the URL."""
    parsed = sa.make_url(url)
    with tunnel(lambda _: postgres_socket(parsed), blind) as port:
        yield through(parsed, port)


def through(url: sa.URL, port: int) -> str:
    """Return the URL of a database by a port of this machine."""
    return url.set(host="127.0.0.1", port=port, query={}).render_as_string(hide_password=False)


def blind(data: bytes, is_answer: bool) -> None:
    """See nothing."""
    del data, is_answer


def _pass(source: socket.socket, target: socket.socket, see: See, is_answer: bool) -> None:
    try:
        while data := source.recv(1 << 16):
            see(data, is_answer)
            target.sendall(data)
    except Exception:  # noqa: BLE001 - the connection is cut
        pass
    cut(source, target)
