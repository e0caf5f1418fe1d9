"""An object store for tests: S3, as moto serves it, with a look at each request."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs
import requests
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET: Final = "changes"
_ACCESS_DENIED: Final = (
    b"<?xml version='1.0' encoding='UTF-8'?>"
    b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)
# moto looks at the service only.
_AUTHORIZATION: Final = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"


def nothing(method: str, name: str) -> None:
    """Do nothing before a request."""


def nobody(method: str, name: str) -> bool:
    """Return False: there are all rights."""
    return False


@dataclass
class ServedStore:
    """An object store that answers.

    Attributes:
        endpoint: its address.
        requests: the method and the name of each.
        before: is called with them before a request is answered.
        refuses: whether a request is answered as one for which there are no rights.
        heeds_conditions: an object is created only if there is none, as the request asks.
    """

    endpoint: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], None] = nothing
    refuses: Callable[[str, str], bool] = nobody
    heeds_conditions: bool = True

    @property
    def path(self) -> str:
        """The URL of its only bucket."""
        return f"s3://{BUCKET}"

    @property
    def options(self) -> dict[str, str]:
        """sink.storage_options for it."""
        return {
            "aws_endpoint": self.endpoint,
            "aws_region": "us-east-1",
            "aws_access_key_id": "key",
            "aws_secret_access_key": "secret",
            "allow_http": "true",
        }

    def files(self) -> pafs.S3FileSystem:
        """Return the store as pyarrow's client has it, which is not the one that wrote."""
        return pafs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=self.endpoint,
            region="us-east-1",
        )

    def download(self, folder: str, to: Path) -> None:
        """Copy all objects of a folder."""
        pafs.copy_files(f"{BUCKET}/{folder}", str(to), source_filesystem=self.files())

    def upload(self, folder: Path, to: str) -> None:
        """Copy all files of a folder."""
        pafs.copy_files(str(folder), f"{BUCKET}/{to}", destination_filesystem=self.files())

    def names(self, prefix: str) -> list[str]:
        """Return the names of the objects that begin so."""
        found = self.files().get_file_info(pafs.FileSelector(BUCKET, recursive=True))
        names = [file.path.removeprefix(f"{BUCKET}/") for file in found if file.is_file]
        return [name for name in names if name.startswith(prefix)]

    def answer(self, application: Any) -> Callable[[dict[str, Any], Any], Iterable[bytes]]:
        """Return a WSGI application that notes each request first."""

        def noting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            request = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(f"/{BUCKET}/")
            self.requests.append(request)
            self.before(*request)
            if self.refuses(*request):
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [_ACCESS_DENIED]
            if not self.heeds_conditions:
                environ.pop("HTTP_IF_NONE_MATCH", None)
            answered: Iterable[bytes] = application(environ, start_response)
            return answered

        return noting


@contextmanager
def s3() -> Iterator[ServedStore]:
    """Serve S3, with one bucket, for the time of the context."""
    store = ServedStore()
    application = store.answer(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, application, threaded=True)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        store.endpoint = f"http://127.0.0.1:{server.server_port}"
        # moto keeps the objects of a former store of this process.
        requests.post(f"{store.endpoint}/moto-api/reset", timeout=60).raise_for_status()
        headers: Mapping[str, str] = {"Authorization": _AUTHORIZATION}
        url = f"{store.endpoint}/{BUCKET}"
        requests.put(url, headers=headers, timeout=60).raise_for_status()
        yield store
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
