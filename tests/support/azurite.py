"""Azurite, Microsoft's emulator of Azure's blobs, as a process of its own."""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs
from xml.etree import ElementTree

import requests

from slackwater.testing.emulator import free_port
from tests.support.http_forwarding import Application, forwarding_to
from tests.support.repository import BUILD

_VERSION: Final = "3.35.0"
_FOLDER: Final = BUILD / f"azurite-{_VERSION}"
_STARTED_S_MAX: Final = 120
# Those that the emulator is documented with: no secret.
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


def _installed() -> Path:
    """Return the program, which npm installs if it is not there.

    Raises:
        RuntimeError: there is no npm.
    """
    program = _FOLDER / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise RuntimeError("Azurite needs Node.js 20 and npm: on Debian, apt-get install npm")
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(_FOLDER)]
        subprocess.run([*command, f"azurite@{_VERSION}"], check=True, timeout=600)
    return program


@contextmanager
def running() -> Iterator[str]:
    """Run Azurite for the time of the context; yield its host and port."""
    program, port = _installed(), free_port()
    address = f"127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as folder:
        command = [str(program), "--inMemoryPersistence", "--skipApiVersionCheck"]
        options = ["--silent", "--disableTelemetry", "--blobPort", str(port)]
        process = subprocess.Popen([*command, *options], cwd=folder, stdout=subprocess.DEVNULL)
        try:
            until = time.monotonic() + _STARTED_S_MAX
            while not _answers(address):
                assert process.poll() is None, "Azurite ended at once"
                assert time.monotonic() < until, "Azurite does not answer"
                time.sleep(0.1)
            yield address
        finally:
            process.kill()
            process.wait()


def _answers(address: str) -> bool:
    try:
        requests.get(f"http://{address}", timeout=10)
    except requests.ConnectionError:
        return False
    return True


def application(address: str) -> Application:
    """Return a WSGI application that asks Azurite, as the client asked."""
    return forwarding_to(address, _from)


def _from(query: str, content: bytes) -> bytes:
    """Return a list of blobs from a name on, which Azure knows and Azurite does not yet."""
    names = parse_qs(query).get("startFrom")
    if names is None:
        return content
    listed = ElementTree.fromstring(content)
    for blobs in listed.iter("Blobs"):
        for blob in blobs.findall("Blob"):
            if blob.findtext("Name", "") < names[0]:
                blobs.remove(blob)
    return ElementTree.tostring(listed)
