"""Iceberg's REST catalog, with its tables in a stand-in for S3 or Cloud Storage."""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from slackwater.testing.emulator import free_port
from tests.support.catalog_servers import SERVERS
from tests.support.http_forwarding import forwarding_to
from tests.support.object_stores import ServedStore, listening, serving
from tests.support.rest_clients import CLIENTS, VERSION, Client

_STARTED_S_MAX: Final = 180
# For tests that take each kind.
REST_SERVERS: Final = ["iceberg", pytest.param("nessie", marks=pytest.mark.long)]
NAME: Final = "lake"
NAMESPACE: Final = "tables"


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
            "spark.jars.packages": f"org.apache.iceberg:{self.client.package}:{VERSION}",
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
        # Nessie names a library that is not here.
        table.io = PyArrowFileIO({**table.io.properties, **self._options})
        return table

    def make_namespace(self, name: str = NAMESPACE) -> None:
        """Make a namespace, which the pipeline's user does."""
        self._client().create_namespace(name)

    def _client(self) -> RestCatalog:
        return RestCatalog(NAME, uri=self.direct, **self._options)

    @property
    def _options(self) -> dict[str, str]:
        return self.client.python_options(self.store.direct)


@contextmanager
def rest_catalog(
    folder: Path, store_name: str = "s3", server: str = "iceberg"
) -> Iterator[ServedCatalog]:
    """Serve a catalog with one empty namespace for the time of the context.

    Args:
        folder: for its database and its log.
        store_name: one of CLIENTS, in which the tables are.
        server: one of SERVERS.
    """
    kind, port, client = SERVERS[server], free_port(), CLIENTS[store_name]
    with client.served() as store:
        start = kind.start(folder, port, f"{store.path}/warehouse", client, store.endpoint)
        environ = {**os.environ, **start.environ}
        with (folder / "catalog.log").open("wb") as log:
            process = subprocess.Popen(start.command, env=environ, stdout=log, stderr=log)
        try:
            address = f"127.0.0.1:{port}"
            direct = f"http://{address}{kind.root}"
            _wait_until_ready(direct, process, folder / "catalog.log")
            with listening(store.answer(forwarding_to(address))) as uri:
                catalog = ServedCatalog(f"{uri}{kind.root}", direct, store, client)
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


def _wait_until_ready(uri: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _STARTED_S_MAX
    while time.monotonic() < until:
        assert process.poll() is None, f"the catalog ended:\n{log.read_text()[-2_000:]}"
        try:
            requests.get(f"{uri}/v1/config", timeout=10).raise_for_status()
        except requests.RequestException:
            time.sleep(0.1)
        else:
            return
    raise AssertionError(f"the catalog was not ready in time:\n{log.read_text()[-2_000:]}")
