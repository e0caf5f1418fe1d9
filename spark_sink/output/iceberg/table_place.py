"""The place of an Iceberg table: a folder, or a catalog that spark.conf defines."""

import json
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from pyiceberg.catalog import Catalog, load_catalog, rest
from pyiceberg.io import FileIO
from pyiceberg.typedef import EMPTY_DICT
from pyiceberg.utils.config import Config
from pyspark.sql import SparkSession

from slackwater.spark_sink.errors import ObjectStoreError
from slackwater.spark_sink.output.iceberg.folder_catalog import FolderCatalog
from slackwater.spark_sink.output.iceberg.store_io import StoreIO
from slackwater.spark_sink.output.object_store import is_object_store
from slackwater.spark_sink.output.small_files import without_scheme

_KEY: Final = "spark.sql.catalog."
# Iceberg's classes in Java, by their last part, and its types, as pyiceberg has them.
_TYPES: Final[Mapping[str, str]] = {
    "rest": "rest",
    "RESTCatalog": "rest",
    "jdbc": "sql",
    "JdbcCatalog": "sql",
    "hive": "hive",
    "HiveCatalog": "hive",
    "glue": "glue",
    "GlueCatalog": "glue",
}
# Of the drivers of databases, in Java and in SQLAlchemy.
_DATABASES: Final[Mapping[str, str]] = {
    "jdbc:sqlite:": "sqlite:///",
    "jdbc:postgresql:": "postgresql+psycopg:",
}
_IO: Final = f"{StoreIO.__module__}.{StoreIO.__qualname__}"


class RestCatalog(rest.RestCatalog):
    """A REST catalog, whose tables have StoreIO.

    A catalog may name another FileIO for each table, as Nessie does.
    """

    def _load_file_io(
        self,
        properties: Mapping[str, str] = EMPTY_DICT,
        location: str | None = None,  # noqa: ARG002 - it has one for all
    ) -> FileIO:
        return StoreIO({**self.properties, **properties})


@dataclass(frozen=True)
class TablePlace:
    """The place of one table.

    Attributes:
        path: the table's folder or URL; in a catalog only its last part counts, the table's name.
        namespace: a catalog and a namespace, such as lake.orders; None for a folder.
        options: of an object store; see open_object_store().
    """

    path: str
    namespace: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The table's name for messages."""
        table = posixpath.basename(self.path)
        return self.path if self.namespace is None else f"{self.namespace}.{table}"

    @property
    def identifier(self) -> tuple[str, ...]:
        """The table's identifier in its catalog."""
        return (*self._namespace, posixpath.basename(self.path))

    @property
    def _namespace(self) -> tuple[str, ...]:
        return tuple((self.namespace or "").replace("`", "").split(".")[1:])

    def open(self, spark: SparkSession) -> Catalog:
        """Return the catalog.

        Args:
            spark: whose settings define it.

        Raises:
            ObjectStoreError: they define one that the driver can't reach.
            Exception: see iceberg_errors().
        """
        if self.namespace is None:
            return FolderCatalog(location_of(self.path), self.options)
        name = self.namespace.partition(".")[0]
        return _opened(name, json.dumps(catalog_properties(name, spark.conf.getAll)))

    def tables(self, spark: SparkSession) -> list[str] | None:
        """Return the names of the namespace's tables; None for a folder."""
        if self.namespace is None:
            return None
        return [identifier[-1] for identifier in self.open(spark).list_tables(self._namespace)]


@cache
def _opened(name: str, properties: str) -> Catalog:
    """Return a catalog: of all tables one, with its connections and its token."""
    stated: dict[str, Any] = json.loads(properties)
    if stated["type"] != "rest":
        return load_catalog(name, **stated)
    # As load_catalog() does, with the configuration in files and in the environment.
    return RestCatalog(name, **{**(Config().get_catalog_config(name) or {}), **stated})


def location_of(path: str) -> str:
    """Return a path or a URL in the form of metadata."""
    if is_object_store(path):
        return path.rstrip("/")
    # As it is: neither Hadoop nor this program takes %20 for a space.
    return f"file://{Path(without_scheme(path)).absolute()}"


def catalog_properties(name: str, conf: Mapping[str, str]) -> dict[str, Any]:
    """Return the properties of a catalog, as pyiceberg takes them.

    Args:
        name: the catalog's.
        conf: Spark's settings.

    Raises:
        ObjectStoreError: it is of a kind that only Spark can reach.
    """
    key = f"{_KEY}{name}"
    own = {k.removeprefix(f"{key}."): v for k, v in conf.items() if k.startswith(f"{key}.")}
    kind = own.pop("type", None) or own.pop("catalog-impl", "").rpartition(".")[2]
    if kind not in _TYPES:
        raise ObjectStoreError(
            f"sink.catalog {name}: {key}.type is {kind or 'not set'}, and tables are written to"
            f" {', '.join(sorted(filter(str.islower, _TYPES)))}.",
            "Use one of these; for tables in folders leave sink.catalog out",
        )
    own.pop("io-impl", None)
    # A database may have been started again.
    made: dict[str, Any] = {"pool_pre_ping": "true", **own}
    made |= {"type": _TYPES[kind], "py-io-impl": _IO}
    if "google" in own.get("rest.auth.type", "").lower():
        # As in Iceberg for Java: application default credentials.
        made["auth"] = {"type": "google"}
    uri = own.get("uri", "")
    for java, python in _DATABASES.items():
        if uri.startswith(java):
            made["uri"] = _with_user(python + uri.removeprefix(java), own)
    return made


def _with_user(uri: str, properties: Mapping[str, str]) -> str:
    """Return the URI of a database with the user that JDBC has beside it."""
    user = properties.get("jdbc.user")
    scheme, separator, rest = uri.partition("://")
    if user is None or not rest.partition("/")[0]:
        return uri
    password = properties.get("jdbc.password")
    own = ":".join(quote(part, safe="") for part in (user, password) if part)
    return f"{scheme}{separator}{own}@{rest}"
