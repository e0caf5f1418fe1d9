"""Folders among the temporary files, where another user may have made them first."""

import os
import stat
from pathlib import Path


def own_folder(folder: Path) -> Path:
    """Make a folder that only this user can enter, or close the one that is there; return it.

    Raises:
        OSError: there is such a folder, and it is another user's, others can write to it, or it is
            a link.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode) or status.st_mode & 0o022:
        raise PermissionError(f"{folder} is not this user's alone")
    if status.st_mode & 0o077:
        folder.chmod(0o700)
    return folder
