"""The file systems that Spark reaches through Hadoop, and the needs of a path.

All of this is known from the settings, before Spark is started.
"""

from collections.abc import Collection, Mapping
from typing import Final

from slackwater.spark_sink.errors import FileSystemError
from slackwater.spark_sink.output.hadoop_connectors import CONNECTORS

# Hadoop's own, whose classes Spark has.
_OF_HADOOP: Final = frozenset({"file", "hdfs", "webhdfs", "swebhdfs", "viewfs"})
# Those of Hadoop's connectors. wasb, which Hadoop gave up, is never added for a path.
_CONNECTORS: Final = {scheme: c for c in CONNECTORS for scheme in c.schemes}
_GIVEN_UP: Final = {"wasb": _CONNECTORS["abfss"], "wasbs": _CONNECTORS["abfss"]}
# Of each session of Spark's.
_SESSION_CATALOG: Final = "spark_catalog"


def require_file_system(path: str, conf: Mapping[str, str], jars: Collection[str]) -> None:
    """Check that Spark can reach a path.

    Args:
        path: a path or URL that Spark is to use.
        conf: Spark's settings.
        jars: the names of the jars that will be on its class path, with folders or as coordinates.

    Raises:
        FileSystemError: it has no file system for the URL's scheme.
    """
    scheme, separator, _ = path.partition("://")
    if not separator or scheme in _OF_HADOOP or f"spark.hadoop.fs.{scheme}.impl" in conf:
        return
    connector = (_CONNECTORS | _GIVEN_UP).get(scheme)
    if connector is None:
        schemes = "Hadoop's connector has s3a://" if scheme == "s3" else _all_schemes()
        hint = f"{schemes}. For one of your own set spark.hadoop.fs.{scheme}.impl in spark.conf"
        raise FileSystemError(f"{path}: Spark knows no file system {scheme}.", hint)
    if not connector.is_brought(conf, jars):
        raise FileSystemError(
            f"{path}: Spark has no connector for {scheme}.",
            f"`slackwater jars FOLDER {connector.name}` fetches {connector.artifact} and what it"
            " needs into the folder of spark.jars. If Spark has it in another way set"
            f" spark.hadoop.fs.{scheme}.impl",
        )


def require_catalog(catalog: str, conf: Mapping[str, str]) -> None:
    """Check that Spark's settings define a catalog.

    Args:
        catalog: its name, and perhaps a namespace, with dots.
        conf: Spark's settings.

    Raises:
        FileSystemError: they do not.
    """
    name = catalog.partition(".")[0]
    key = f"spark.sql.catalog.{name}"
    if name != _SESSION_CATALOG and key not in conf:
        raise FileSystemError(
            f"sink.catalog {catalog}: spark.conf defines no catalog {name}.",
            f"Set {key} in spark.conf, and {key}.type and {key}.uri: docs/object-stores.md has an"
            " example",
        )


def _all_schemes() -> str:
    return f"Known: {', '.join(sorted(_OF_HADOOP | _CONNECTORS.keys() | _GIVEN_UP.keys()))}"
