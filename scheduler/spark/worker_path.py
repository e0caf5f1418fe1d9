"""The module search path of Spark's Python workers.

Spark puts archives first: PySpark, Py4J and a jar. Before each task a worker forgets what it knows
of all places, and until Python 3.13 it then reads the archives' directories again: 0.2 s of CPU a
task, more than a small epoch takes otherwise.
"""

import sys
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Final

_PACKAGES: Final = ("pyspark", "py4j")


def without_archives(places: list[str]) -> list[str]:
    """Return the places without the archives of the PySpark that is installed beside us.

    They stay if PySpark or Py4J is not installed, or if they belong to another Spark, whose version
    may differ.

    Args:
        places: as sys.path.
    """
    others = [place for place in places if not Path(place).is_file()]
    specs = [PathFinder.find_spec(name, others) for name in _PACKAGES]
    if not all(spec and spec.origin for spec in specs):
        return places
    home = Path(str(specs[0] and specs[0].origin)).resolve().parent
    return [p for p in places if p in others or not Path(p).resolve().is_relative_to(home)]


def remove_archives() -> None:
    """Remove the archives from sys.path of this process, which has not loaded PySpark yet."""
    places = without_archives(sys.path)
    for place in set(sys.path).difference(places):
        # Our own packages were looked for there.
        sys.path_importer_cache.pop(place, None)
    sys.path[:] = places
