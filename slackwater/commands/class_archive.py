"""Makes an archive of the classes that Spark's JVM loads: `slackwater class-archive FILE`.

With `spark.class_archive` set to the file, Spark starts sooner: the JVM maps the classes from it,
already parsed and verified. An archive fits one version of Java and one of Spark.
"""

from __future__ import annotations

from pathlib import Path

from slackwater.errors import ClassArchiveError
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.jvm import jvm_process
from slackwater.pipeline.spark.session import DRIVER_OPTIONS, start_spark, stop_spark
from slackwater.pipeline.spark.warm_up import warm_up

_EXIT_S_MAX = 120


def make(path: Path) -> None:
    """Run what a pipeline runs, and write an archive of the classes that were loaded.

    Args:
        path: the archive; its folder is made if it is missing.

    Raises:
        JavaNotFoundError: there is no Java that Spark runs on.
        SparkFailedError: Spark does not start.
        ClassArchiveError: the JVM did not write the file.
    """
    find_java()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without logging: the JVM leaves some classes out and would print a line about each.
    options = f"-XX:ArchiveClassesAtExit={path.absolute()} -Xlog:disable"
    spark = start_spark(["classes"], "local[2]", {DRIVER_OPTIONS: options}, ())
    process = jvm_process()
    warm_up(spark)
    stop_spark(spark)
    if process is not None and process.stdin is not None:
        # The JVM exits when its standard input is closed.
        process.stdin.close()
        process.wait(_EXIT_S_MAX)
    if not path.exists():
        raise ClassArchiveError(f"the JVM did not write {path}.", "What it printed above says why")
