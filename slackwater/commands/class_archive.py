"""The archive of the classes that Spark's JVM loads: `slackwater class-archive FILE`.

With `spark.class_archive` set to the file, Spark starts sooner: the JVM maps the classes from it,
already parsed and verified. An archive fits one version of Java and one of Spark.
"""

from pathlib import Path

from slackwater.errors import ClassArchiveError
from slackwater.pipeline.spark.java import find_java
from slackwater.pipeline.spark.session import DRIVER_OPTIONS, start_spark, stop_spark
from slackwater.pipeline.spark.warm_up import warm_up


def make(path: Path) -> None:
    """Run a pipeline's parts of Spark, and write an archive of the classes that were loaded.

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
    warm_up(spark)
    # The JVM writes the file when it ends.
    stop_spark(spark)
    if not path.exists():
        raise ClassArchiveError(f"the JVM did not write {path}.", "What it printed above says why")
