"""The jars of sinks and object stores, fetched: `slackwater jars FOLDER [FORMAT...]`.

With `spark.jars` set to the folder, nothing is fetched when a pipeline starts: for images, and for
machines that can't reach a Maven repository.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.spark_sink.sinks.registry import spark_confs

FORMATS: Final = tuple(spark_confs())


def fetch(folder: Path, sink_formats: Sequence[str] = FORMATS) -> list[Path]:
    """Copy the jars that are needed into a folder, which is made if missing.

    Args:
        folder: where the jars go.
        sink_formats: the names of formats, sinks and connectors; some of FORMATS.

    Returns:
        The paths of the copies.

    Raises:
        JavaNotFoundError: there is no Java that Spark runs on.
        SparkFailedError: the jars can't be fetched.
        OSError: the folder can't be made.
    """
    find_java()
    # Before what takes a minute.
    folder.mkdir(parents=True, exist_ok=True)
    spark = start_spark(["jars"], "local[1]", {}, sink_formats)
    try:
        fetched = spark.sparkContext.getConf().get("spark.jars") or ""
    finally:
        stop_spark(spark)
    jars = [Path(urlparse(jar).path) for jar in fetched.split(",") if jar]
    return [Path(shutil.copy(jar, folder)) for jar in jars]
