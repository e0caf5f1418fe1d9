"""Make an archive of the JVM's classes: `python -m slackwater.commands.class_archive FILE`.

With `spark.class_archive` set to the file Spark starts sooner: the JVM maps the classes from it,
read and verified already. It belongs to one Java and one Spark.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark import SparkContext

from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import DRIVER_OPTIONS, start_spark, stop_spark
from slackwater.pipeline.spark.warm_up import warm_up

_EXIT_S_MAX = 120


def make(path: Path) -> None:
    """Run what a pipeline runs, and keep the classes that it loaded.

    Raises:
        SparkFailedError: Spark does not start.
        OSError: the file was not written.
    """
    find_java()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Logging off: the archive leaves some classes out and tells of each.
    options = f"-XX:ArchiveClassesAtExit={path.absolute()} -Xlog:disable"
    spark = start_spark(["classes"], "local[2]", {DRIVER_OPTIONS: options}, ())
    process = getattr(SparkContext._gateway, "proc", None)
    warm_up(spark)
    stop_spark(spark)
    if process is not None:
        # Its standard input is how it sees that nobody needs it any more.
        process.stdin.close()
        process.wait(_EXIT_S_MAX)
    if not path.exists():
        raise OSError(f"{path} was not written; what the JVM printed above says why")


def main() -> None:
    """The command."""
    if len(sys.argv) != 2:
        print("usage: python -m slackwater.commands.class_archive FILE", file=sys.stderr)  # noqa: T201
        sys.exit(2)
    make(Path(sys.argv[1]))


if __name__ == "__main__":
    main()
