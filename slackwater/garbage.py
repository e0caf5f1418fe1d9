"""Collections of garbage in processes of the program's own."""

import gc
from typing import Final

# By default one begins with each 700 new objects. While modules are loaded they take a fifth of the
# CPU, and find nothing.
_OBJECTS_MIN: Final = 50_000


def collect_seldom() -> None:
    """Have collections begin with more new objects; to be called before modules are loaded."""
    gc.set_threshold(_OBJECTS_MIN)
