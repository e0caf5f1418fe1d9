"""Object stores that Spark reaches by Hadoop's connectors, in the JVM that the tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import pytest

from tests import azurite, fake_gcs
from tests.object_stores import BUCKET, ServedStore, azure, s3

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


# A store, the URL of its bucket, and Spark's settings for it.
Served = tuple[ServedStore, str, Mapping[str, str]]
Open = Callable[[], AbstractContextManager[Served]]


@contextmanager
def _s3a() -> Iterator[Served]:
    keys = {"fs.s3a.access.key": "key", "fs.s3a.secret.key": "secret"}
    with s3() as store:
        yield store, f"s3a://{BUCKET}", hadoop(in_s3(store) | keys)


@contextmanager
def _gs() -> Iterator[Served]:
    with fake_gcs.cloud_storage() as store:
        # A request that is held back for a while is not sent again.
        patience = {"fs.gs.http.read-timeout": "120000"}
        yield store, store.path, {**store.anonymous_spark_conf, **hadoop(patience)}


@contextmanager
def _abfs() -> Iterator[Served]:
    """Azure, where requests of Hadoop's connector are neither noted nor held back."""
    with azure() as store:
        key = {f"fs.azure.account.key.{azurite.ACCOUNT}.dfs.core.windows.net": azurite.KEY}
        yield store, store.hadoop_path, {**store.spark_conf, **hadoop(key)}


OPEN: Final[Mapping[str, Open]] = {"s3a": _s3a, "gs": _gs, "abfs": _abfs}
# As parameters of tests: those whose requests are noted, and all.
NOTED: Final = ("s3a", pytest.param("gs", marks=pytest.mark.long))
ALL: Final = (*NOTED, pytest.param("abfs", marks=pytest.mark.long))


@contextmanager
def reached_by(spark: Any, scheme: str) -> Iterator[tuple[ServedStore, str]]:
    """Serve a store that a session's JVM reaches by a scheme; yield it and its bucket's URL."""
    conf = spark.sparkContext._jsc.hadoopConfiguration()
    with OPEN[scheme]() as (store, url, settings):
        # Another module's stand-in had another address.
        settings = {**settings, f"spark.hadoop.fs.{scheme}.impl.disable.cache": "true"}
        for name, value in settings.items():
            conf.set(name.removeprefix("spark.hadoop."), value)
        yield store, url
        for name in settings:
            conf.unset(name.removeprefix("spark.hadoop."))
