"""Finds the modules of a package, so that a new sink or envelope is a new file and nothing else.

An explicit list would be one more file to touch, and one that can be forgotten. A package is listed
once for each process that asks.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType


def modules_in(package: str) -> Iterator[ModuleType]:
    """Import every module of a package, in the order of their names.

    Args:
        package: its full name, such as slackwater.spark_sink.envelopes.
    """
    path = importlib.import_module(package).__path__
    for name in sorted(module.name for module in pkgutil.iter_modules(path)):
        yield importlib.import_module(f"{package}.{name}")
