"""The search for a package's classes, by which a new sink or envelope is just a new file.

An explicit list would be one more file to touch, and one that can be forgotten. A package is listed
once for each process that asks.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from inspect import isabstract
from types import ModuleType
from typing import TypeVar

T = TypeVar("T")


def classes_by_name(
    package: str, base: type[T], name_of: Callable[[type[T]], str], default: str | None = None
) -> Mapping[str, type[T]]:
    """Return the concrete classes of one kind that a package's modules hold, in the names' order.

    Args:
        package: its full name, such as slackwater.spark_sink.envelopes.
        base: the class that they derive from.
        name_of: returns the name by which a class is found.
        default: the name that comes first.

    Raises:
        TypeError: two classes have the same name.
    """
    classes: dict[str, type[T]] = {}
    for module in modules_in(package):
        for value in vars(module).values():
            if not isinstance(value, type) or not issubclass(value, base) or isabstract(value):
                continue
            name = name_of(value)
            # A module also holds the classes that it imports.
            if classes.setdefault(name, value) is not value:
                raise TypeError(f"{classes[name]} and {value} have the same name, {name!r}")
    return {name: classes[name] for name in sorted(classes, key=lambda n: (n != default, n))}


def modules_in(package: str) -> Iterator[ModuleType]:
    """Import every module of a package, in the order of their names.

    Args:
        package: its full name, such as slackwater.spark_sink.envelopes.
    """
    path = importlib.import_module(package).__path__
    for name in sorted(module.name for module in pkgutil.iter_modules(path)):
        yield importlib.import_module(f"{package}.{name}")
