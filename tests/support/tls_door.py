"""A door with TLS before a gRPC server without, and what a client needs to pass it."""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import trustme

from slackwater.endpoint import Endpoint

_ADDRESS: Final = "127.0.0.1"
_CLIENT: Final = "reader@example.org"


def server_side(certificate: trustme.LeafCert, clients: trustme.CA | None = None) -> ssl.SSLContext:
    """Return what a server shows; with clients it asks for a certificate of that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    context.set_alpn_protocols(["h2"])
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        clients.configure_trust(context)
    return context


def client_files(folder: Path, certificate: trustme.LeafCert) -> dict[str, str]:
    """Write a client's certificate and key, each by one rename; return the settings for them."""
    chain = b"".join(blob.bytes() for blob in certificate.cert_chain_pems)
    contents = {
        "client_certificate": chain,
        "client_key": certificate.private_key_pem.bytes(),
    }
    for name, content in contents.items():
        new = folder / f"{name}.new"
        new.write_bytes(content)
        new.rename(folder / f"{name}.pem")
    return {name: str(folder / f"{name}.pem") for name in contents}


class TlsDoor:
    """The door, until it is closed.

    Attributes:
        host: HOST:PORT to connect to.
    """

    def __init__(self, behind: str, context: ssl.SSLContext) -> None:
        self._behind = behind.rpartition(":")
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: Any = None
        self.shut(context)
        self.host = f"{_ADDRESS}:{self._port}"

    def shut(self, then: ssl.SSLContext | None) -> None:
        """Cut all connections; open again with another context, if there is one."""
        asyncio.run_coroutine_threadsafe(self._shut(then), self._loop).result(60)

    def close(self) -> None:
        """Cut all connections and end the thread."""
        self.shut(None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _shut(self, then: ssl.SSLContext | None) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        handlers = asyncio.all_tasks() - {asyncio.current_task()}
        for handler in handlers:
            handler.cancel()
        await asyncio.gather(*handlers, return_exceptions=True)
        if then is None:
            return
        self._server = await asyncio.start_server(self._pass, _ADDRESS, self._port, ssl=then)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_server = await asyncio.open_connection(self._behind[0], int(self._behind[2]))
        ends = {writer, to_server[1]}
        self._writers |= ends
        with suppress(OSError):
            await asyncio.gather(_copy(reader, to_server[1]), _copy(to_server[0], writer))
        self._writers -= ends
        for end in ends:
            end.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    finally:
        target.close()


@contextmanager
def tls_door(behind: str, context: ssl.SSLContext) -> Iterator[TlsDoor]:
    """Open a door before HOST:PORT while the context is open."""
    door = TlsDoor(behind, context)
    try:
        yield door
    finally:
        door.close()


class Guarded:
    """A server behind mutual TLS, and the files of a client that may pass.

    Attributes:
        door: the way in.
        endpoint: the same, as a reader names it.
    """

    def __init__(self, folder: Path, door: TlsDoor, authority: trustme.CA) -> None:
        self._folder, self.door, self._authority = folder, door, authority
        trusted = folder / "ca.pem"
        authority.cert_pem.write_to_path(str(trusted))
        files = client_files(folder, authority.issue_cert(_CLIENT))
        self.endpoint = Endpoint(
            door.host,
            anonymous=True,
            ca_certificate=str(trusted),
            client_certificate=files["client_certificate"],
            client_key=files["client_key"],
        )

    def renew(self) -> None:
        """Give the client another certificate, and let only clients with such a one in.

        The server's goes on to be of the first authority.
        """
        clients = trustme.CA()
        client_files(self._folder, clients.issue_cert(_CLIENT))
        self.door.shut(server_side(self._authority.issue_cert(_ADDRESS), clients))


@contextmanager
def guarded_server(folder: Path, behind: str) -> Iterator[Guarded]:
    """Guard HOST:PORT while the context is open; the client's files are in a folder."""
    authority = trustme.CA()
    with tls_door(behind, server_side(authority.issue_cert(_ADDRESS), authority)) as door:
        yield Guarded(folder, door, authority)
