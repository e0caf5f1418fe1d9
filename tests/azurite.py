"""Azurite, Microsoft's emulator of Azure's blobs, as a process of its own."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs
from xml.etree import ElementTree

import requests

from slackwater.testing.emulator import free_port

_VERSION: Final = "3.35.0"
_FOLDER: Final = Path(__file__).parent.parent / "build" / f"azurite-{_VERSION}"
_STARTED_S_MAX: Final = 120
# Those that the emulator is documented with: no secret.
ACCOUNT: Final = "devstoreaccount1"
KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)
# Those of a connection, not of what is asked.
_HOP_BY_HOP: Final = {"connection", "transfer-encoding", "keep-alive"}


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


def forwarding_to(address: str) -> Any:
    """Return a WSGI application that asks Azurite, as the client asked."""

    def forward(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        names = [name for name in environ if name.startswith("HTTP_")]
        headers = {name[5:].replace("_", "-").lower(): environ[name] for name in names}
        if environ.get("CONTENT_TYPE"):
            headers["content-type"] = environ["CONTENT_TYPE"]
        length = environ.get("CONTENT_LENGTH")
        body = environ["wsgi.input"].read(int(length)) if length else b""
        if length == "0":
            headers["content-length"] = "0"
        url = f"http://{address}{environ['REQUEST_URI']}"
        method = environ["REQUEST_METHOD"]
        answer = requests.request(method, url, headers=headers, data=body, timeout=300, stream=True)
        content = _from(environ["QUERY_STRING"], answer.raw.read())
        kept = [(k, v) for k, v in answer.headers.items() if k.lower() not in _HOP_BY_HOP]
        start_response(f"{answer.status_code} {answer.reason}", kept)
        return [content]

    return forward


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
