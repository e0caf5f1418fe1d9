"""The Spark session of the daemon."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
import pyspark
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from scheduler.source import SpannerChangesDataSource
from slackwater.errors import SparkFailedError
from spark_sink import delta_table, formats, kafka

_DEFAULTS: Final = {
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    # An epoch is small and often: a shuffle over Spark's 200 partitions would cost more than it.
    "spark.sql.shuffle.partitions": "4",
    # An epoch's plan has no shuffle to adapt, and looking for one costs time in every epoch.
    "spark.sql.adaptive.enabled": "false",
    "spark.locality.wait": "0",
    # Spark's default counts nanoseconds from 1970 in 64 bits, as other readers take it: they fail
    # before 1677 and after 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Bounds the checkpoint's offset and commit logs.
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
}


def start_spark(name: str, master: str, conf: Mapping[str, str], sink_format: str) -> SparkSession:
    """A session with the source registered; conf wins over what this program sets.

    Args:
        name: the pipeline's.
        master: Spark's master URL.
        conf: the user's settings of Spark.
        sink_format: of the changelog, which may need jars.

    Raises:
        SparkFailedError: the JVM did not start, for want of a jar that could not be fetched or
            another reason that its output names.

    The JVM gets a session of its own in the operating system's sense: a Ctrl-C in the terminal
    shall reach this program, which drains, and not the JVM and its Python workers.
    """
    # Or Spark's workers start another Python, without our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    settings = SparkConf(loadDefaults=False)
    for variable, value in _memory_environment().items():
        os.environ.setdefault(variable, value)
        settings.set(f"spark.executorEnv.{variable}", value)
    settings.setAppName(f"slackwater {name}").setMaster(master)
    needed = _needed(sink_format)
    if "spark.jars" in conf:
        # The user brings the jars.
        needed = {key: value for key, value in needed.items() if not key.startswith("spark.jars")}
    for key, value in {**_DEFAULTS, **needed, **conf}.items():
        settings.set(key, value)
    try:
        gateway = launch_gateway(settings, popen_kwargs={"start_new_session": True})
    except PySparkRuntimeError as error:
        packages = {**needed, **conf}.get("spark.jars.packages")
        raise SparkFailedError(
            "Spark's JVM did not start; what it printed above says why.",
            f"It fetches {packages} at its first start: where there is no way to a Maven"
            " repository, put the jars into spark.conf as spark.jars"
            if packages
            else "",
        ) from error
    context = SparkContext(conf=settings, gateway=gateway)
    context.setLogLevel("ERROR")
    spark = SparkSession(context)
    spark.dataSource.register(SpannerChangesDataSource)
    return spark


def _needed(sink_format: str) -> dict[str, str]:
    """What a session needs for a sink's format; jars come from Maven's repository at the start."""
    match sink_format:
        case formats.DELTA:
            return delta_table.spark_conf(pyspark.__version__)
        case formats.KAFKA:
            return kafka.spark_conf(pyspark.__version__)
    return {}


def _memory_environment() -> dict[str, str]:
    """What keeps Spark's Python workers small: see docs/performance.md."""
    # With an arena for each thread, what many threads received stays with the process.
    found = {"MALLOC_ARENA_MAX": "2"}
    if "jemalloc" in pa.supported_memory_backends():
        found["ARROW_DEFAULT_MEMORY_POOL"] = "jemalloc"
    return found


def stop_spark(spark: SparkSession) -> None:
    """Stop the session and its JVM."""
    spark.stop()
    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        SparkContext._gateway = None
        SparkContext._jvm = None
