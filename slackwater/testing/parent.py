"""Child processes that end with their parent, however it ends."""

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


# For subprocess.Popen: Linux kills the child when the thread that started it has ended. Other
# systems have no such thing.
DIE_WITH_PARENT: Final = _die_with_parent if sys.platform == "linux" else None
