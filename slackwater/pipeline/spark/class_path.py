"""The jars that Spark will find, as far as settings and environment tell before it is started."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pyspark

from slackwater.config.settings import Spark

# Lists of jars, or of Maven's coordinates, that Spark puts on its class path.
_LISTS: Final = ("spark.jars", "spark.jars.packages")
_CLASS_PATHS: Final = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_VARIABLES: Final = ("SPARK_DIST_CLASSPATH", "HADOOP_CLASSPATH", "CLASSPATH")


def jar_names(spark: Spark, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the jars, with their folders or as Maven's coordinates.

    Args:
        spark: the settings of Spark.
        environ: of this process; Spark's scripts take class paths from it.
    """
    home = environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    folders = [str(Path(home, "jars"))] + ([spark.jars] if spark.jars else [])
    listed = [name for key in _LISTS for name in spark.conf.get(key, "").split(",")]
    class_paths = [spark.conf.get(key, "") for key in _CLASS_PATHS]
    class_paths += [environ.get(variable, "") for variable in _VARIABLES]
    places = [place for path in class_paths for place in path.split(os.pathsep) if place]
    patterns = [*(f"{folder}/*" for folder in folders), *places]
    return [*listed, *(name for pattern in patterns for name in glob.glob(pattern))]
