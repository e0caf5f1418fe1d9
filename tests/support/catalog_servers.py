"""Servers of Iceberg's REST catalog: Iceberg's own, which its tests use, and Nessie's."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from slackwater.pipeline.spark.java import find_java, java_version
from slackwater.testing.emulator import free_port
from tests.support import ivy
from tests.support.rest_clients import VERSION, Client

# Counts the sets of jars that there were.
_JARS: Final = 2
_IVY: Final = Path(__file__).parent
_NESSIE: Final = "0.108.8"
_NESSIE_JAVA_MIN: Final = 21
# Where Debian's packages and others put them.
_JAVAS: Final = Path("/usr/lib/jvm")


class Start(NamedTuple):
    """How a server is started: its command, and what its environment has besides."""

    command: Sequence[str]
    environ: Mapping[str, str]


class CatalogServer(Protocol):
    """A kind of server.

    Attributes:
        root: of the catalog's paths.
    """

    root: str

    def start(self, folder: Path, port: int, warehouse: str, client: Client, store: str) -> Start:
        """Return how to start it.

        Args:
            folder: for its files.
            port: where it listens.
            warehouse: the URL below which tables are.
            client: what it needs for their store.
            store: the store's address.
        """


class _Iceberg:
    root = ""

    def start(self, folder: Path, port: int, warehouse: str, client: Client, store: str) -> Start:
        properties = {
            "uri": f"jdbc:sqlite:{folder / 'catalog.db'}",
            "warehouse": warehouse,
            "io-impl": client.io,
            **client.options(store),
        }
        jars = ivy.jars(
            f"iceberg-rest-catalog-{VERSION}-{_JARS}",
            ["-ivy", str(_IVY / "rest_catalog.ivy.xml")],
            "iceberg-open-api",
        )
        java = [str(find_java()), "-Xmx512m", "-cp", f"{jars}/*"]
        variables = {self._variable(name): value for name, value in properties.items()}
        return Start(
            [*java, "org.apache.iceberg.rest.RESTCatalogServer"],
            {**variables, "CATALOG_REST_PORT": str(port)},
        )

    @staticmethod
    def _variable(name: str) -> str:
        """Return the variable by which the server takes a property."""
        return f"CATALOG_{name.upper()}".replace("-", "__").replace(".", "_")


class _Nessie:
    """Nessie, with its tables in S3 and its versions in memory."""

    root = "/iceberg"

    def start(self, folder: Path, port: int, warehouse: str, client: Client, store: str) -> Start:
        del folder, client
        s3 = "nessie.catalog.service.s3.default-options"
        properties = {
            "nessie.version.store.type": "IN_MEMORY",
            "nessie.catalog.default-warehouse": "warehouse",
            "nessie.catalog.warehouses.warehouse.location": warehouse,
            f"{s3}.endpoint": store,
            f"{s3}.path-style-access": "true",
            f"{s3}.region": "us-east-1",
            f"{s3}.access-key": "urn:nessie-secret:quarkus:own",
            "own.name": "key",
            "own.secret": "secret",
            "quarkus.http.host": "127.0.0.1",
            "quarkus.http.port": str(port),
            "quarkus.management.port": str(free_port()),
        }
        jars = ivy.jars(
            f"nessie-{_NESSIE}", ["-ivy", str(_IVY / "nessie.ivy.xml")], "nessie-quarkus"
        )
        [jar] = jars.glob("*-runner.jar")
        options = (f"-D{name}={value}" for name, value in properties.items())
        return Start([str(_java_for_nessie()), "-Xmx700m", *options, "-jar", str(jar)], {})


def _java_for_nessie() -> Path:
    """Return a java program that is new enough."""
    home = os.environ.get("JAVA_HOME")
    named = [Path(home, "bin/java")] if home else []
    for java in [*named, *sorted(_JAVAS.glob("*/bin/java"))]:
        if (java_version(java) or 0) >= _NESSIE_JAVA_MIN:
            return java
    raise AssertionError(
        f"Nessie needs Java {_NESSIE_JAVA_MIN} or later, and neither JAVA_HOME nor {_JAVAS} has"
        " one. Debian and Ubuntu: apt-get install openjdk-21-jre-headless"
    )


SERVERS: Final[Mapping[str, CatalogServer]] = {"iceberg": _Iceberg(), "nessie": _Nessie()}
