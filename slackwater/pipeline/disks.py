"""The disks of a pipeline, to tell which one an error means that is full or read-only."""

import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slackwater.config.settings import Settings

# The messages of the system, Java, SQLite and PostgreSQL, and of Hadoop, which has the system's.
_ANY: Final = "Mkdirs failed to create"
_FULL: Final = re.compile(
    f"No space left on device|[Dd]isk quota exceeded|database or disk is full|disk I/O error|{_ANY}"
)
_READ_ONLY: Final = re.compile(f"[Rr]ead-only file system|readonly database|{_ANY}")
_SQLITE: Final = "sqlite:///"
# The space that a small epoch needs.
_LITTLE_BYTES: Final = 16 * 1024 * 1024
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Disk:
    """The file system that a setting's folder is on.

    Attributes:
        setting: such as sink.path.
        path: the folder.
        free_bytes: that this user may use.
        is_read_only: whether nothing can be written at all.
    """

    setting: str
    path: str
    free_bytes: int
    is_read_only: bool


def places_of(settings: Settings) -> dict[str, str]:
    """Return the places where a pipeline writes, by their settings."""
    places = {
        "sink.path": settings.sink.place_path,
        "sink.checkpoint": settings.sink.checkpoint,
        "spark.local.dir": settings.spark.conf.get("spark.local.dir", tempfile.gettempdir()),
    }
    if settings.state.url.startswith(_SQLITE):
        places["state.url"] = settings.state.url.removeprefix(_SQLITE).partition("?")[0]
    return places


def disks_of(places: Mapping[str, str]) -> Iterator[Disk]:
    """Look at the file systems of places on this machine, one after the other.

    Args:
        places: paths or URLs, by the setting that names them.
    """
    for setting, place in places.items():
        local = place.removeprefix("file://")
        if "://" in local:
            continue
        path = Path(local).absolute()
        while not path.exists():
            path = path.parent
        try:
            of_path = os.statvfs(path)
        except OSError:
            continue
        yield Disk(
            setting,
            place,
            of_path.f_bavail * of_path.f_frsize,
            bool(of_path.f_flag & os.ST_RDONLY),
        )


def advice(error: str, disks: Iterable[Disk]) -> str:
    """Return advice about an error's disk; an empty text if it is about none.

    Args:
        error: the error's text.
        disks: those of the pipeline, which are not asked for otherwise.
    """
    is_full, is_read_only = _FULL.search(error), _READ_ONLY.search(error)
    if not is_full and not is_read_only:
        return ""
    remedies = []
    for disk in disks:
        if is_read_only and disk.is_read_only:
            remedies.append(
                f"The file system of {disk.setting} {disk.path} is read-only: make it writable."
            )
        elif is_full and disk.free_bytes < _LITTLE_BYTES:
            remedies.append(
                f"The disk of {disk.setting} {disk.path} has {disk.free_bytes // _MIB} MiB left:"
                " make room there."
            )
    return " ".join(remedies)
