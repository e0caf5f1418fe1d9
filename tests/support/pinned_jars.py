"""Writes the checksums of the jars that sinks and connectors need.

`python -m tests.support.pinned_jars` fetches them into a new folder, for the Spark of this
environment, and prints them as sha256sum does; `make lock` makes
slackwater/pipeline/spark/jars.sha256 of that.
"""

import sys
import tempfile
from pathlib import Path
from typing import Final

import pyspark
from pyspark import SparkConf
from pyspark.errors import PySparkRuntimeError

from slackwater.commands.jars import FORMATS
from slackwater.pipeline.spark.class_path import jar_names, joined
from slackwater.pipeline.spark.classified_jars import with_classified_jars
from slackwater.pipeline.spark.jar_cache import file_name
from slackwater.pipeline.spark.jvm import end, launch
from slackwater.pipeline.spark.pinned_jars import UNSEEN, checksum
from slackwater.pipeline.spark.sink_needs import needed
from slackwater.spark_sink.errors import UnknownFormatError
from slackwater.spark_sink.sinks.registry import spark_confs

EXCLUDES: Final = "spark.jars.excludes"
# What the registry of packages lacks where the list is written: the first for all versions of
# Spark, the second for 4.2.
TOKENS: Final = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
KAFKA: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"


def fetch(name: str, ivy: Path) -> list[str]:
    """Fetch the jars of a format or connector into Ivy's folder; return those that it lacks."""
    conf = {"spark.jars.ivy": str(ivy)}
    conf |= joined(needed([name], conf, None, {}), conf, jar_names(conf, None, {}))
    conf[EXCLUDES] = f"{conf.get(EXCLUDES, '')},{TOKENS}".strip(",")
    settings = SparkConf(loadDefaults=False).setMaster("local[1]").setAppName("jars")
    lacking = [TOKENS] if name == "kafka" else []
    try:
        end(launch(settings.setAll(list(with_classified_jars(conf, {}).items()))))
    except PySparkRuntimeError:
        if name != "kafka":
            raise
        lacking.append(KAFKA)
    return [file_name(f"{package}:{pyspark.__version__}") for package in lacking]


def names() -> list[str]:
    """Return the formats and connectors that there are for this Spark."""
    there = []
    for name in FORMATS:
        try:
            spark_confs()[name](pyspark.__version__)
        except UnknownFormatError:
            continue
        there.append(name)
    return there


def write() -> None:
    """Print the list."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names():
            print(f"fetching the jars of {name}", file=sys.stderr)
            for jar in fetch(name, Path(folder)):
                print(f"{UNSEEN}  {jar}")
        for file in Path(folder, "jars").iterdir():
            print(f"{checksum(file)}  {file.name}")


if __name__ == "__main__":
    write()
