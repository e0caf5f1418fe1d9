"""Iceberg's REST catalog, with its tables in an object store: its own server, and stand-ins for S3
and Cloud Storage."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table

from slackwater.pipeline.spark.java import find_java
from slackwater.testing.emulator import free_port
from tests.support import fake_gcs, ivy
from tests.support.http_forwarding import forwarding_to
from tests.support.object_stores import ServedStore, listening, s3, serving

_VERSION: Final = "1.11.0"
# Counts the sets of jars that there were.
_JARS: Final = 2
_IVY: Final = Path(__file__).with_suffix(".ivy.xml")
_SERVER: Final = "org.apache.iceberg.rest.RESTCatalogServer"
_STARTED_S_MAX: Final = 180
NAME: Final = "lake"
NAMESPACE: Final = "tables"


class Client(Protocol):
    """What Iceberg's clients need for a store.

    Attributes:
        package: the name of Maven's artifact.
        io: the Java class.
    """

    package: str
    io: str

    def served(self) -> AbstractContextManager[ServedStore]:
        """Serve the store."""

    def options(self, endpoint: str) -> dict[str, str]:
        """Return the properties for the store at an address, as Iceberg in Java has them."""

    def python_options(self, endpoint: str) -> dict[str, str]:
        """Return them as pyiceberg has them."""


class _S3:
    package = "iceberg-aws-bundle"
    io = "org.apache.iceberg.aws.s3.S3FileIO"

    def served(self) -> AbstractContextManager[ServedStore]:
        return s3()

    def options(self, endpoint: str) -> dict[str, str]:
        return {
            "s3.endpoint": endpoint,
            "s3.path-style-access": "true",
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "client.region": "us-east-1",
        }

    def python_options(self, endpoint: str) -> dict[str, str]:
        return self.options(endpoint)


class _Gcs:
    package = "iceberg-gcp-bundle"
    io = "org.apache.iceberg.gcp.gcs.GCSFileIO"

    def served(self) -> AbstractContextManager[ServedStore]:
        return fake_gcs.cloud_storage()

    def options(self, endpoint: str) -> dict[str, str]:
        return {
            "gcs.project-id": "p",
            "gcs.service.host": endpoint,
            "gcs.no-auth": "true",
        }

    def python_options(self, endpoint: str) -> dict[str, str]:
        # pyarrow does without a token only if it has one.
        token = {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": str(2**42)}
        return {"gcs.service.host": endpoint, **token}


CLIENTS: Final[Mapping[str, Client]] = {"s3": _S3(), "gs": _Gcs()}


@dataclass(frozen=True)
class ServedCatalog:
    """A catalog that answers.

    Attributes:
        uri: its address.
        direct: another address, at which requests are neither noted nor held back.
        store: where its tables are. Requests to the catalog are among its requests.
        client: the store's.
    """

    uri: str
    direct: str
    store: ServedStore
    client: Client

    @property
    def setting(self) -> str:
        """sink.catalog for it."""
        return f"{NAME}.{NAMESPACE}"

    @property
    def spark_conf(self) -> dict[str, str]:
        """spark.conf for it, as a user has it."""
        key = f"spark.sql.catalog.{NAME}"
        return {
            "spark.jars.packages": f"org.apache.iceberg:{self.client.package}:{_VERSION}",
            key: "org.apache.iceberg.spark.SparkCatalog",
            f"{key}.type": "rest",
            f"{key}.uri": self.uri,
            f"{key}.io-impl": self.client.io,
            **{
                f"{key}.{name}": value
                for name, value in self.client.options(self.store.endpoint).items()
            },
        }

    def table(self, name: str) -> Table | None:
        """Return a table as another client sees it now; None if there is none."""
        try:
            table: Table = self._client().load_table((NAMESPACE, name))
        except NoSuchTableError:
            return None
        return table

    def make_namespace(self, name: str = NAMESPACE) -> None:
        """Make a namespace, which the pipeline's user does."""
        self._client().create_namespace(name)

    def _client(self) -> RestCatalog:
        return RestCatalog(NAME, uri=self.direct, **self.client.python_options(self.store.direct))


@contextmanager
def rest_catalog(folder: Path, store_name: str = "s3") -> Iterator[ServedCatalog]:
    """Serve a catalog with one empty namespace for the time of the context.

    Args:
        folder: for its database and its log.
        store_name: one of CLIENTS, in which the tables are.
    """
    port, client = free_port(), CLIENTS[store_name]
    with client.served() as store:
        properties = {
            "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
            "warehouse": f"{store.path}/warehouse",
            "io-impl": client.io,
            **client.options(store.endpoint),
        }
        environ = {_variable(name): value for name, value in properties.items()}
        environ |= {"CATALOG_REST_PORT": str(port), **os.environ}
        jars = ivy.jars(
            f"iceberg-rest-catalog-{_VERSION}-{_JARS}", ["-ivy", str(_IVY)], "iceberg-open-api"
        )
        command = [str(find_java()), "-Xmx512m", "-cp", f"{jars}/*", _SERVER]
        with (folder / "catalog.log").open("wb") as log:
            process = subprocess.Popen(command, env=environ, stdout=log, stderr=log)
        try:
            address = f"127.0.0.1:{port}"
            _wait_until_ready(address, process, folder / "catalog.log")
            with listening(store.answer(forwarding_to(address))) as uri:
                catalog = ServedCatalog(uri, f"http://{address}", store, client)
                catalog.make_namespace()
                yield catalog
        finally:
            process.kill()
            process.wait()


@contextmanager
def counted(catalog: ServedCatalog) -> Iterator[tuple[ServedCatalog, list[tuple[str, str]]]]:
    """Serve a catalog at another address, too; yield it with the requests that come there."""
    notes = ServedStore()
    with serving(notes, forwarding_to(catalog.direct.partition("://")[2])):
        yield replace(catalog, uri=notes.endpoint), notes.requests


def _variable(name: str) -> str:
    """Return the variable by which the server takes a property."""
    return f"CATALOG_{name.upper()}".replace("-", "__").replace(".", "_")


def _wait_until_ready(address: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _STARTED_S_MAX
    while time.monotonic() < until:
        assert process.poll() is None, f"the catalog ended:\n{log.read_text()[-2_000:]}"
        try:
            requests.get(f"http://{address}/v1/config", timeout=10).raise_for_status()
        except requests.RequestException:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"the catalog was not ready in time:\n{log.read_text()[-2_000:]}")
