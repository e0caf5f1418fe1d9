"""Sessions of Spark for the tests, in one JVM after the other, and what a query wrote."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slackwater.commands import as_of, run, verify
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import DRIVER_OPTIONS, start_spark, stop_spark
from slackwater.spark_sink.errors import UnknownFormatError
from slackwater.spark_sink.sinks.registry import spark_confs

HAS_AVAILABLE_NOW: Final = tuple(map(int, pyspark.__version__.split(".")[:2])) >= (4, 2)
_EMULATORS: Final = ("SPANNER_EMULATOR_HOST", "BIGTABLE_EMULATOR_HOST")


class SharedSpark:
    """The one JVM that a process of tests has, which outlives the modules that use it.

    A start of Spark costs about as much as a module's tests, and in a JVM that has run for a while
    they take less.
    """

    def __init__(self) -> None:
        self._start: Callable[[], SparkSession] | None = None
        self._spark: SparkSession | None = None

    def started_by(self, start: Callable[[], SparkSession]) -> SparkSession:
        """Return the session that a function starts, or has started if nothing came between."""
        if self._spark is None or self._start is not start:
            self.stop()
            find_java()
            self._start, self._spark = start, start()
        return self._spark

    def stop(self) -> None:
        """End the JVM, if there is one."""
        if self._spark is not None:
            stop_spark(self._spark)
        self._spark = None


@pytest.fixture(scope="session")
def shared_spark() -> Iterator[SharedSpark]:
    """Return what starts Spark for all modules of this process."""
    shared = SharedSpark()
    yield shared
    shared.stop()


def _for_sinks() -> SparkSession:
    """Start Spark as the program does, for all formats of tables, for stores and for Kafka."""
    formats = [name for name in ("delta", "iceberg", "s3a", "gs", "abfss") if _has(name)]
    # It sends itself all of their jars, and without a JVM's better compiler encrypting takes longer
    # than all else of its start. Programs of the tests encrypt.
    conf = {"spark.network.crypto.enabled": "false"}
    # What the tests of Kafka take in place of a missing jar is of this version.
    if pyspark.__version__.startswith("4.1."):
        from tests.support import kafka_broker

        formats, conf = [*formats, "kafka"], conf | kafka_broker.spark_conf()
    return start_spark(["orders"], "local[2]", conf, formats, class_archive=_class_archive())


def _class_archive() -> str | None:
    """Return the file that the tests' JVMs take their classes from; see tests/conftest.py."""
    return os.environ.get("SLACKWATER_SPARK_CLASS_ARCHIVE")


def _has(table_format: str) -> bool:
    """Return whether there is a table format for this version of Spark."""
    try:
        spark_confs()[table_format](pyspark.__version__)
    except UnknownFormatError:
        return False
    return True


def with_one_slot(conf: dict[str, str]) -> SparkSession:
    """Start Spark as the program does, for one task at a time, with a user's settings."""
    return start_spark(["one", "two"], "local[1]", conf, (), class_archive=_class_archive())


def _for_notebook() -> SparkSession:
    """Start Spark as a notebook does: it finds the source by itself."""
    archive = _class_archive()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config(DRIVER_OPTIONS, f"-XX:SharedArchiveFile={archive}" if archive else "")
        .getOrCreate()
    )


@pytest.fixture(scope="module")
def session(shared_spark: SharedSpark) -> SparkSession:
    """Return a module's own session of the program's Spark."""
    return shared_spark.started_by(_for_sinks).newSession()


@pytest.fixture(scope="module")
def kafka_session(session: SparkSession) -> SparkSession:
    """Return a module's own session with what a pipeline has whose sink is Kafka alone."""
    # The JVM has Delta's settings: it does not compile.
    session.conf.set("spark.sql.codegen.wholeStage", "true")
    session.conf.set("spark.sql.codegen.factoryMode", "FALLBACK")
    return session


@pytest.fixture(scope="module")
def notebook(shared_spark: SharedSpark) -> SparkSession:
    """Return a notebook's session."""
    spark = shared_spark.started_by(_for_notebook)
    spark.sparkContext.setLogLevel("OFF")
    return spark


@pytest.fixture
def commands_here(session: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands of this process run on its Spark, and not start another."""

    def start(*_: object, **__: object) -> SparkSession:
        # The JVM may be older than the emulator: what it starts has this environment over its own.
        session.sparkContext.environment.update(
            {name: os.environ[name] for name in _EMULATORS if name in os.environ}
        )
        return session.newSession()

    for module in (as_of, run, verify):
        monkeypatch.setattr(module, "spark_of", start)
        monkeypatch.setattr(module, "stop_spark", lambda _: None)


def on_newer_spark(test: Callable[..., None]) -> Callable[..., None]:
    """Leave a test of the planner's own to one version in `make test`: Spark asks it the same."""
    return test if HAS_AVAILABLE_NOW else pytest.mark.long(test)


class Collected:
    """The rows of each micro-batch, kept as a sink of foreachBatch."""

    def __init__(self) -> None:
        self.epochs: list[list[Any]] = []

    def __call__(self, batch: DataFrame, epoch: int) -> None:
        self.epochs.append(batch.collect())

    def rows(self) -> list[Any]:
        return [row for epoch in self.epochs for row in epoch]


def wait_until(done: Callable[[], bool], query: StreamingQuery, seconds_max: float = 180) -> None:
    """Wait for something that a running query brings about."""
    until = time.monotonic() + seconds_max
    while not done():
        if failure := query.exception():
            raise AssertionError(str(failure))
        assert time.monotonic() < until, "the query did not get there in time"
        time.sleep(0.1)
