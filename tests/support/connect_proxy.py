"""An HTTP proxy that makes tunnels, and counts them by what they lead to."""

import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.tunnels import blind, tunnel


class ConnectProxy:
    """The proxy.

    Attributes:
        url: http://HOST:PORT.
        tunnels: how many were asked for, by HOST:PORT.
    """

    def __init__(self) -> None:
        self.url = ""
        self.tunnels: Counter[str] = Counter()

    def connect(self, client: socket.socket) -> socket.socket:
        """Take a client's request, and connect to what it names."""
        request = b""
        while not request.endswith(b"\r\n\r\n"):
            request += client.recv(1)
        _method, target, *_ = request.decode().split()
        self.tunnels[target] += 1
        host, _, port = target.rpartition(":")
        server = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        return server


@contextmanager
def connect_proxy() -> Iterator[ConnectProxy]:
    """Run a proxy while the context is open."""
    proxy = ConnectProxy()
    with tunnel(proxy.connect, blind) as port:
        proxy.url = f"http://127.0.0.1:{port}"
        yield proxy
