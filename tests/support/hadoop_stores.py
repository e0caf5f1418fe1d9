"""Object stores that Spark reaches by Hadoop's connectors, in the JVM that the tests share."""

from collections.abc import Mapping
from typing import Final

from tests.support.object_stores import ServedStore

S3A: Final = {
    "fs.s3a.path.style.access": "true",
    "fs.s3a.connection.ssl.enabled": "false",
    "fs.s3a.endpoint.region": "us-east-1",
}


def in_s3(store: ServedStore) -> dict[str, str]:
    """Return Hadoop's settings for a store that serves S3, without credentials."""
    return {**S3A, "fs.s3a.endpoint": store.endpoint}


def hadoop(conf: Mapping[str, str]) -> dict[str, str]:
    """Return Hadoop's settings as Spark's."""
    return {f"spark.hadoop.{key}": value for key, value in conf.items()}
