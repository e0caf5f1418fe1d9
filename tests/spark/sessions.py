"""Spark for the tests of the source: one session a test module, and what a query wrote."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import stop_spark


@pytest.fixture(scope="module")
def spark(emulator: object) -> Iterator[SparkSession]:
    """Start a local session in which Spark finds the source by itself."""
    del emulator
    find_java()
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    session = (
        SparkSession.builder.master("local[2,4]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    # With its JVM: another session may need other jars.
    stop_spark(session)


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
