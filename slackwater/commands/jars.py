"""Fetch the jars of the sinks: `python -m slackwater.commands.jars FOLDER [FORMAT...]`.

With `spark.jars` set to the folder nothing is fetched at a start: for images, and for machines with
no way to a Maven repository.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import start_spark, stop_spark
from slackwater.spark_sink import formats

FORMATS: Final = (*formats.TABLE_FORMATS, formats.KAFKA)


def fetch(folder: Path, of: tuple[str, ...] = FORMATS) -> list[Path]:
    """Copy the jars that the formats need into a folder; the copies.

    Raises:
        SparkFailedError: they can't be fetched.
    """
    find_java()
    spark = start_spark(["jars"], "local[1]", {}, of)
    try:
        given = spark.sparkContext.getConf().get("spark.jars") or ""
    finally:
        stop_spark(spark)
    folder.mkdir(parents=True, exist_ok=True)
    found = [Path(urlparse(jar).path) for jar in given.split(",") if jar]
    return [Path(shutil.copy(jar, folder)) for jar in found]


def main() -> None:
    """The command."""
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(FORMATS):
        known = "|".join(FORMATS)
        print(f"usage: python -m slackwater.commands.jars FOLDER [{known}]...", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    for jar in fetch(Path(sys.argv[1]), tuple(sys.argv[2:]) or FORMATS):
        print(jar)  # noqa: T201


if __name__ == "__main__":
    main()
