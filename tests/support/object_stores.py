"""Object stores for tests, with a look at each request: S3, Cloud Storage and Azure.

moto serves S3. Cloud Storage's XML API is near to S3's, so moto serves it too, behind a translation
of what differs: of conditions, copies and generations. Azurite serves Azure.
"""

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pyarrow.fs as pafs
import pytest
import requests
from moto.backends import get_backend
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import make_server

from tests.support import azurite
from tests.support.http_forwarding import Application

BUCKET: Final = "changes"
_ACCESS_DENIED: Final = (
    b"<?xml version='1.0' encoding='UTF-8'?>"
    b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"
)
# moto looks at the service only.
_AUTHORIZATION: Final = "AWS4-HMAC-SHA256 Credential=key/20260101/us-east-1/s3/aws4_request"


def nothing(method: str, name: str) -> None:
    """Do nothing about a request."""


def nobody(method: str, name: str) -> bool:
    """Return False: there are all rights."""
    return False


@dataclass
class ServedStore:
    """S3, which answers.

    Attributes:
        endpoint: its address.
        direct: another address, at which requests are neither noted nor held back.
        requests: the method and the name of each.
        before: is called with them before a request is answered.
        after: is called with them when what it asks for is done, before the answer is sent.
        refuses: whether a request is answered as one for which there are no rights.
        heeds_conditions: an object is created only if there is none, as the request asks.
        application: answers behind all that.
    """

    endpoint: str = ""
    direct: str = ""
    requests: list[tuple[str, str]] = field(default_factory=list)
    before: Callable[[str, str], None] = nothing
    after: Callable[[str, str], None] = nothing
    refuses: Callable[[str, str], bool] = nobody
    heeds_conditions: bool = True
    application: Application | None = None

    @property
    def path(self) -> str:
        """The URL of its only bucket."""
        return f"s3://{BUCKET}"

    @contextmanager
    def for_another(self) -> "Iterator[ServedStore]":
        """Serve the same objects to another process, whose requests are noted apart."""
        assert self.application is not None, "it is not served"
        other = replace(self, requests=[], before=nothing, after=nothing)
        with listening(other.answer(self.application)) as endpoint:
            other.endpoint = endpoint
            yield other

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

    @property
    def direct_options(self) -> dict[str, str]:
        """The options, with the direct address."""
        options = self.options.items()
        return {name: value.replace(self.endpoint, self.direct) for name, value in options}

    def files(self) -> pafs.FileSystem:
        """Return the store as pyarrow's client has it, which is not the one that wrote."""
        return pafs.S3FileSystem(
            access_key="key",
            secret_key="secret",
            endpoint_override=self.direct,
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

    def answer(self, application: Application) -> Application:
        """Return a WSGI application that notes each request first."""

        def noting(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
            request = self.noted(environ)
            self.requests.append(request)
            self.before(*request)
            if self.refuses(*request):
                start_response("403 Forbidden", [("Content-Type", "application/xml")])
                return [_ACCESS_DENIED]
            if not self.heeds_conditions:
                for condition in ("HTTP_IF_NONE_MATCH", "HTTP_X_GOOG_IF_GENERATION_MATCH"):
                    environ.pop(condition, None)
            answer = application(environ, start_response)
            self.after(*request)
            return answer

        return noting

    def noted(self, environ: dict[str, Any]) -> tuple[str, str]:
        """Return the method of a request, and the name of its object."""
        return environ["REQUEST_METHOD"], self._name(environ["PATH_INFO"])

    def _name(self, path: str) -> str:
        return path.removeprefix(f"/{BUCKET}/")


class CloudStorage(ServedStore):
    """Google Cloud Storage: https://cloud.google.com/storage/docs/xml-api/reference-headers."""

    @property
    def path(self) -> str:
        """The URL of its only bucket."""
        return f"gs://{BUCKET}"

    @property
    def options(self) -> dict[str, str]:
        """sink.storage_options for it."""
        account = {
            "gcs_base_url": self.endpoint,
            "disable_oauth": True,
            "client_email": "",
            "private_key": "",
            "private_key_id": "",
        }
        return {"google_service_account_key": json.dumps(account), "allow_http": "true"}


@dataclass
class Azure(ServedStore):
    """Azure's blobs.

    Attributes:
        emulator: where the emulator listens, behind what notes the requests. pyarrow's client does
            not understand that one's first answer, which says "100 Continue".
    """

    emulator: str = ""

    @property
    def path(self) -> str:
        """The URL of its only container."""
        return f"az://{BUCKET}"

    @property
    def options(self) -> dict[str, str]:
        """sink.storage_options for it."""
        return {
            "azure_storage_account_name": azurite.ACCOUNT,
            "azure_storage_account_key": azurite.KEY,
            "azure_endpoint": f"{self.endpoint}/{azurite.ACCOUNT}",
            "allow_http": "true",
        }

    @property
    def hadoop_path(self) -> str:
        """The container's URL as Hadoop's connector has it; abfss:// is the same with TLS."""
        return f"abfs://{BUCKET}@{azurite.ACCOUNT}.dfs.core.windows.net"

    @property
    def spark_conf(self) -> dict[str, str]:
        """spark.conf for Hadoop's connector, without credentials. Its requests are not noted."""
        conf = {
            "abfs.endpoint": self.emulator,
            "always.use.https": "false",
            # Azurite has no folders.
            "account.hns.enabled": "false",
            "fns.account.service.type": "BLOB",
            "io.retry.max.retries": "3",
        }
        return {f"spark.hadoop.fs.azure.{name}": value for name, value in conf.items()}

    def files(self) -> pafs.FileSystem:
        """Return the store as pyarrow's client has it, which is not the one that wrote."""
        return pafs.AzureFileSystem(
            account_name=azurite.ACCOUNT,
            account_key=azurite.KEY,
            blob_storage_authority=self.emulator,
            dfs_storage_authority=self.emulator,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )

    def _name(self, path: str) -> str:
        return path.removeprefix(f"/{azurite.ACCOUNT}/{BUCKET}/")


def _as_s3(application: Application) -> Application:
    """Return a WSGI application that answers requests of Cloud Storage's clients, too."""

    def translating(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ.get("HTTP_AUTHORIZATION", "").startswith("AWS4"):
            return application(environ, start_response)
        environ["HTTP_AUTHORIZATION"] = _AUTHORIZATION
        generation = environ.pop("HTTP_X_GOOG_IF_GENERATION_MATCH", None)
        if generation is not None:
            assert generation == "0", "only for a name that is free"
            environ["HTTP_IF_NONE_MATCH"] = "*"
        source = environ.pop("HTTP_X_GOOG_COPY_SOURCE", None)
        if source is not None:
            environ["HTTP_X_AMZ_COPY_SOURCE"] = source

        def start(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
            etags = [value for name, value in headers if name.lower() == "etag"]
            generations = [
                ("x-goog-generation", str(int(tag.strip('"')[:12], 16))) for tag in etags
            ]
            return start_response(status, [*headers, *generations], *rest)

        return application(environ, start)

    return translating


@contextmanager
def s3() -> Iterator[ServedStore]:
    """Serve S3, with one bucket, for the time of the context."""
    with _served_by_moto(ServedStore()) as store:
        yield store


@contextmanager
def cloud_storage() -> Iterator[ServedStore]:
    """Serve Cloud Storage, with one bucket, for the time of the context."""
    with _served_by_moto(CloudStorage()) as store:
        yield store


@contextmanager
def azure() -> Iterator[Azure]:
    """Serve Azure's blobs, with one container, for the time of the context."""
    with azurite.running() as emulator:
        store = Azure(emulator=emulator)
        with serving(store, azurite.application(emulator)):
            store.files().create_dir(BUCKET)
            yield store


STORES: Final = {"s3": s3, "gs": cloud_storage, "az": azure}
# Of the tests that name their stores, those that take long.
OTHERS: Final = [pytest.param(name, marks=pytest.mark.long) for name in ("gs", "az")]


@contextmanager
def _served_by_moto(store: ServedStore) -> Iterator[ServedStore]:
    # moto keeps the objects of a former store of this process.
    get_backend("s3").reset()
    # For all services, it would look which one each request is for.
    with serving(store, _as_s3(create_backend_app("s3"))):
        headers: Mapping[str, str] = {"Authorization": _AUTHORIZATION}
        url = f"{store.endpoint}/{BUCKET}"
        requests.put(url, headers=headers, timeout=60).raise_for_status()
        yield store


@contextmanager
def serving(store: ServedStore, application: Application) -> Iterator[None]:
    """Give a store its addresses, and answer there for the time of the context."""
    with listening(store.answer(application)) as endpoint, listening(application) as direct:
        store.endpoint, store.direct, store.application = endpoint, direct, application
        yield


@contextmanager
def listening(application: Application) -> Iterator[str]:
    """Answer for the time of the context, and yield the address."""
    server = make_server("127.0.0.1", 0, application, threaded=True)
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
