"""The jars that Spark will find, as far as settings and environment show before it starts."""

import glob
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pyspark

JARS: Final = "spark.jars"
PACKAGES: Final = "spark.jars.packages"
# Lists of jars, or of Maven's coordinates, that Spark puts on its class path.
_LISTS: Final = (JARS, PACKAGES)
_CLASS_PATHS: Final = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
# The user's values of these are added to the program's, and do not replace them.
JOINED: Final = (PACKAGES, "spark.jars.excludes", "spark.sql.extensions")
_VARIABLES: Final = ("SPARK_DIST_CLASSPATH", "HADOOP_CLASSPATH", "CLASSPATH")


def jar_names(conf: Mapping[str, str], folder: str | None, environ: Mapping[str, str]) -> list[str]:
    """Return the names of the jars, with their folders or as Maven's coordinates.

    Args:
        conf: the user's settings of Spark.
        folder: one with jars, of the setting spark.jars.
        environ: of this process; Spark's scripts take class paths from it.
    """
    home = environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
    folders = [str(Path(home, "jars"))] + ([folder] if folder else [])
    listed = [name for key in _LISTS for name in conf.get(key, "").split(",")]
    class_paths = [conf.get(key, "") for key in _CLASS_PATHS]
    class_paths += [environ.get(variable, "") for variable in _VARIABLES]
    places = [place for path in class_paths for place in path.split(os.pathsep) if place]
    patterns = [*(f"{folder}/*" for folder in folders), *places]
    return [*listed, *(name for pattern in patterns for name in glob.glob(pattern))]


def joined(
    needed: Mapping[str, str], conf: Mapping[str, str], jars: Iterable[str]
) -> dict[str, str]:
    """Return the program's settings of Spark with the user's, whose lists are added.

    Args:
        needed: the program's.
        conf: the user's, which replace the program's unless they are lists.
        jars: the names of jars that Spark will find, as jar_names() has them: packages of which
            there is one are not fetched.
    """
    there = list(jars)
    lists = {key: names_of(needed, key) for key in JOINED}
    lists[PACKAGES] = [
        package
        for package in lists[PACKAGES]
        if not any(_is_of(package.split(":")[1], jar) for jar in there)
    ]
    both = {key: dict.fromkeys([*names, *names_of(conf, key)]) for key, names in lists.items()}
    others = {key: value for key, value in {**needed, **conf}.items() if key not in JOINED}
    return others | {key: ",".join(names) for key, names in both.items() if names}


def names_of(conf: Mapping[str, str], key: str) -> list[str]:
    """Return the names in a list of Spark's settings."""
    return [name for name in map(str.strip, conf.get(key, "").split(",")) if name]


def _is_of(artifact: str, jar: str) -> bool:
    """Return whether a file, or a package by its coordinates, is some version of an artifact."""
    return f":{artifact}:" in jar or f"{artifact}-" in jar.rpartition("/")[2]
