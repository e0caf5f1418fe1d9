"""The command lines of the programs among the tests."""

import argparse
from typing import Any


def parsed_options(description: str | None, **defaults: Any) -> argparse.Namespace:
    """Parse the options of this process.

    Args:
        description: of the program.
        defaults: an option for each, of its default's type. False is a flag; of a tuple one is
            chosen, by default the first; of a list some are, by default all.
    """
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        match default:
            case False:
                parser.add_argument(option, action="store_true")
            case tuple():
                parser.add_argument(option, choices=default, default=default[0])
            case list():
                parser.add_argument(option, nargs="*", choices=default, default=default)
            case _:
                parser.add_argument(option, type=type(default), default=default)
    return parser.parse_args()
