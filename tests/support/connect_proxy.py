"""An HTTP proxy that makes tunnels, and counts them by what they lead to."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class ConnectProxy:
    """The proxy.

    Attributes:
        url: http://HOST:PORT.
        tunnels: how many were asked for, by HOST:PORT.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.tunnels: Counter[str] = Counter()


@contextmanager
def connect_proxy() -> Iterator[ConnectProxy]:
    """Run a proxy while the context is open."""
    proxies: list[ConnectProxy] = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            _method, target, _version = self.rfile.readline().decode().split()
            while self.rfile.readline().strip():
                pass
            proxies[0].tunnels[target] += 1
            host, _, port = target.rpartition(":")
            with socket.create_connection((host, int(port))) as server:
                self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
                answers = threading.Thread(target=_pass, args=(server, self.connection))
                answers.start()
                _pass(self.connection, server)
                answers.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        proxies.append(ConnectProxy(f"http://127.0.0.1:{server.server_address[1]}"))
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield proxies[0]
        finally:
            server.shutdown()
            thread.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
