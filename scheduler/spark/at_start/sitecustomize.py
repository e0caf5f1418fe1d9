"""Have the Python processes of Spark's driver load modules at less cost.

Spark puts PySpark's archive first, which has no compiled modules. Each of the half dozen processes
that a query starts, one after the other, would compile what it loads: 0.7 s of CPU each. And it
would look for garbage among it again and again.
"""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

from slackwater.garbage import collect_seldom
from slackwater.scheduler.spark.worker_path import remove_archives

remove_archives()
collect_seldom()

# The environment's own module of this name, which this one hides.
_others = [place for place in sys.path if Path(place) != Path(__file__).parent]
_hidden = PathFinder.find_spec("sitecustomize", _others)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(module_from_spec(_hidden))
