"""Cloud Storage as fake-gcs-server serves it, for clients of both APIs.

Hadoop's connector speaks the JSON API, which the server has, and other clients the XML API, of
which it lacks some. It is written in Go, and is built once, which takes a minute or two.
"""

import io
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs

import pyarrow.fs as pafs
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from slackwater.testing.emulator import free_port
from tests.support.http_forwarding import forwarding_to, read_body
from tests.support.object_stores import BUCKET, CloudStorage, serving
from tests.support.repository import BUILD
from tests.support.xml_uploads import XmlUploads, from_name

_VERSION: Final = "1.56.1"
_STARTED_S_MAX: Final = 60
_NAME_IN_BODY: Final = re.compile(rb'"name" ?: ?"([^"]+)"')


def _installed() -> Path:
    """Return the program.

    Raises:
        RuntimeError: there is no Go to build it with.
    """
    folder = BUILD / f"fake-gcs-server-{_VERSION}"
    program = folder / "fake-gcs-server"
    if not program.exists():
        go = shutil.which("go")
        if go is None:
            raise RuntimeError("fake-gcs-server needs Go: on Debian, apt-get install golang")
        package = f"github.com/fsouza/fake-gcs-server@v{_VERSION}"
        environ = {**os.environ, "GOBIN": str(folder.absolute())}
        subprocess.run([go, "install", package], env=environ, check=True, timeout=1_800)
    return program


class JsonCloudStorage(CloudStorage):
    """Google Cloud Storage by its JSON API."""

    def files(self) -> pafs.FileSystem:
        """Return the store as pyarrow's client has it, which is not the one that wrote."""
        address = self.direct.removeprefix("http://")
        return pafs.GcsFileSystem(anonymous=True, scheme="http", endpoint_override=address)

    @property
    def spark_conf(self) -> dict[str, str]:
        """spark.conf for it, without credentials."""
        return {
            "spark.hadoop.fs.gs.storage.root.url": f"{self.endpoint}/",
            # fake-gcs-server has no such request.
            "spark.hadoop.fs.gs.operation.move.enable": "false",
        }

    def _name(self, path: str) -> str:
        return super()._name(path.removeprefix(f"/storage/v1/b/{BUCKET}/o/"))

    def noted(self, environ: dict[str, Any]) -> tuple[str, str]:
        """Return the method and the name; an upload has it as a parameter, or in its body."""
        query = parse_qs(environ["QUERY_STRING"])
        name = self._name(environ["PATH_INFO"])
        if query.get("uploadType") == ["multipart"]:
            body = read_body(environ)
            environ["wsgi.input"] = io.BytesIO(body)
            named = _NAME_IN_BODY.search(body)
            name = named[1].decode() if named else name
        elif "name" in query:
            name = query["name"][0]
        return environ["REQUEST_METHOD"], name


@contextmanager
def cloud_storage() -> Iterator[JsonCloudStorage]:
    """Serve Cloud Storage, with one bucket, for the time of the context."""
    store, address = JsonCloudStorage(), f"127.0.0.1:{free_port()}"
    application = XmlUploads(forwarding_to(address, from_name), BUCKET)
    with serving(store, application), _running(address, store.endpoint):
        # pyarrow may hold Python's lock while it reads: nothing of this process could answer it.
        store.direct = f"http://{address}"
        yield store


@contextmanager
def _running(address: str, url: str) -> Iterator[None]:
    """Run the program at an address; its answers name the URL at which clients reach it."""
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", address.partition(":")[2]]
    options += ["-backend", "memory", "-public-host", url.removeprefix("http://")]
    command = [str(_installed()), *options, "-external-url", url]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + _STARTED_S_MAX
        while not _has_bucket(f"http://{address}"):
            assert process.poll() is None, "fake-gcs-server ended at once"
            assert time.monotonic() < until, "fake-gcs-server does not answer"
            time.sleep(0.1)
        yield
    finally:
        process.kill()
        process.wait()


def _has_bucket(url: str) -> bool:
    buckets = f"{url}/storage/v1/b?project=p"
    try:
        return requests.post(buckets, json={"name": BUCKET}, timeout=10).status_code in (200, 409)
    except requests.ConnectionError:
        return False


class _Tokens(BaseHTTPRequestHandler):
    """Answers as Google's token server does."""

    def do_POST(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = json.dumps({"access_token": "t", "token_type": "Bearer", "expires_in": 3_600})
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def service_account(file: Path) -> Iterator[list[str]]:
    """Write a service account's key file, and answer those who ask for its tokens.

    Yields:
        The paths that were asked for.
    """
    key = rsa.generate_private_key(65_537, 2_048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    server = HTTPServer(("127.0.0.1", 0), _Tokens)
    asked: list[str] = []
    server.asked = asked  # type: ignore[attr-defined]
    account = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": key.decode(),
        "client_email": "a@p.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    file.write_text(json.dumps(account))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
