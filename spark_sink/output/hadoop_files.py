"""The file systems that Spark reaches through Hadoop, and what a path needs of them.

All of this is known from the settings, before Spark is started.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from slackwater.spark_sink.errors import FileSystemError
from slackwater.spark_sink.output.hadoop_connectors import CONNECTORS

# Hadoop's own, whose classes Spark has.
_OF_HADOOP: Final = frozenset({"file", "hdfs", "webhdfs", "swebhdfs", "viewfs"})
# Those of Hadoop's connectors. wasb, which Hadoop gave up, is never added for a path.
_CONNECTORS: Final = {scheme: c for c in CONNECTORS for scheme in c.schemes}
_GIVEN_UP: Final = {"wasb": _CONNECTORS["abfss"], "wasbs": _CONNECTORS["abfss"]}
_S3: Final = ("s3", "s3a")
# Of each session of Spark's.
_SESSION_CATALOG: Final = "spark_catalog"
# Settings of Delta's that choose how the next commit is created.
_LOG_STORES: Final = ("spark.delta.logStore.{scheme}.impl", "spark.delta.logStore.class")
# The only one of Delta's for S3 that knows the commits of other processes.
_COORDINATING: Final = "io.delta.storage.S3DynamoDBLogStore"


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


def require_log_store(path: str, conf: Mapping[str, str]) -> None:
    """Check that two processes can't create the same commit of a Delta table that Spark writes.

    S3A creates a file whether or not there is one, and Delta's own log store for S3 knows the
    commits of one process only.

    Raises:
        FileSystemError: the path is in S3, and the log store that coordinates writers is not set.
    """
    scheme = path.partition("://")[0]
    names = [name.format(scheme=scheme) for name in _LOG_STORES]
    if "://" not in path or scheme not in _S3:
        return
    if next((conf[name] for name in names if name in conf), None) != _COORDINATING:
        raise FileSystemError(
            f"{path}: a second process could replace a commit of a Delta table there.",
            "Use format iceberg with a catalog, or a changelog, which need no log store; or a path"
            f" at s3a:// with {names[0].replace('s3.', 's3a.')}: {_COORDINATING} in spark.conf",
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
