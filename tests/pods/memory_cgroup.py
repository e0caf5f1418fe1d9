"""Limits of memory that the kernel enforces: a cgroup for each pod, as a kubelet makes it."""

import atexit
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

_PREFIX: Final = "slackwater-pods-"
_EMPTY_S_MAX: Final = 30
_LOOK_S: Final = 0.05
_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


class NoCgroupError(Exception):
    """This machine does not let its user make cgroups that limit memory."""


@dataclass(frozen=True, slots=True)
class Files:
    """The names of a cgroup's files in one version of cgroups.

    Attributes:
        limit: takes the limit.
        peak: the most that was used, page cache included.
        kills, kill_key: the file with a line that counts the processes killed, and its key.
        of_processes: the keys of memory.stat that add up to what processes hold: memory that the
            kernel can't take back without killing, as there is no swap.
    """

    limit: str
    peak: str
    kills: str
    of_processes: tuple[str, ...]
    kill_key: str = "oom_kill"


V1: Final = Files(
    "memory.limit_in_bytes",
    "memory.max_usage_in_bytes",
    "memory.oom_control",
    ("total_rss", "total_shmem"),
)
V2: Final = Files("memory.max", "memory.peak", "memory.events", ("anon", "shmem"))


def bytes_of(quantity: str) -> int:
    """Return the bytes of a quantity such as 2720Mi.

    Raises:
        ValueError: it is not a quantity.
    """
    match = re.fullmatch(r"(\d+)([A-Za-z]*)", quantity)
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"not a quantity of memory: {quantity}")
    return int(match[1]) * _UNITS[match[2]]


@dataclass
class MemoryCgroup:
    """A cgroup.

    Attributes:
        folder: the cgroup.
        files: the names of its files.
        limit_bytes: its limit; None without one.
        processes_bytes_max: the most that its processes held whenever `look` looked.
    """

    folder: Path
    files: Files
    limit_bytes: int | None
    processes_bytes_max: int = 0

    @property
    def entrance(self) -> Path:
        """A process is in the cgroup, with all that it starts, when its id is written here."""
        return self.folder / "cgroup.procs"

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for their memory."""
        return self._numbers(self.files.kills).get(self.files.kill_key, 0)

    def peak_bytes(self) -> int:
        """Return the most memory that was used, page cache included."""
        return int((self.folder / self.files.peak).read_text())

    def look(self) -> int:
        """Return how many bytes its processes hold now, page cache not included."""
        stat = self._numbers("memory.stat")
        held = sum(stat[key] for key in self.files.of_processes)
        self.processes_bytes_max = max(self.processes_bytes_max, held)
        return held

    def processes(self) -> list[int]:
        """Return the ids of its processes; none if it is gone."""
        with suppress(FileNotFoundError):
            return [int(line) for line in self.entrance.read_text().split()]
        return []

    def kill(self) -> None:
        """Kill its processes, and return when they are gone.

        Raises:
            TimeoutError: they are not.
        """
        began = time.monotonic()
        while pids := self.processes():
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() - began > _EMPTY_S_MAX:
                raise TimeoutError(f"processes {pids} of {self.folder.name} do not end")
            time.sleep(_LOOK_S)

    def remove(self) -> None:
        """Kill its processes and remove it. It may be gone already."""
        self.kill()
        for last in range(9, -1, -1):
            try:
                self.folder.rmdir()
            except FileNotFoundError:
                return
            except OSError:
                # The kernel still counts a process that has just ended.
                if not last:
                    raise
                time.sleep(_LOOK_S)

    def _numbers(self, file: str) -> dict[str, int]:
        lines = (line.split() for line in (self.folder / file).read_text().splitlines())
        return {key: int(number) for key, number in lines}


@dataclass
class MemoryCgroups:
    """Makes cgroups below one that is this process's own.

    Args:
        root: where the file system of cgroups is mounted.
        files: the names of their files.
    """

    root: Path
    files: Files
    made: list[MemoryCgroup] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Remove what a process left that was killed, and make this process's own.

        Raises:
            NoCgroupError: no cgroup can be made.
        """
        self._own = self.root / f"{_PREFIX}{os.getpid()}"
        try:
            if self.files is V2:
                (self.root / "cgroup.subtree_control").write_text("+memory")
            self._remove_left()
            self._own.mkdir()
            atexit.register(self.remove)
            if self.files is V2:
                (self._own / "cgroup.subtree_control").write_text("+memory")
        except OSError as error:
            raise NoCgroupError(
                f"pods run under their memory limits, and {error.filename or self.root} can't be"
                f" written: {error.strerror}. Run as root, where /sys/fs/cgroup is writable"
            ) from error

    def make(self, name: str, limit: str | None) -> MemoryCgroup:
        """Make a cgroup.

        Args:
            name: of the cgroup.
            limit: a quantity such as 2720Mi; None for no limit.
        """
        folder = self._own / name
        folder.mkdir()
        group = MemoryCgroup(folder, self.files, None if limit is None else bytes_of(limit))
        self.made.append(group)
        if group.limit_bytes is not None:
            (folder / self.files.limit).write_text(str(group.limit_bytes))
        return group

    def remove(self) -> None:
        """Kill what is in the cgroups, and remove them."""
        atexit.unregister(self.remove)
        for group in self.made:
            group.remove()
        with suppress(FileNotFoundError):
            self._own.rmdir()

    def _remove_left(self) -> None:
        for folder in self.root.glob(f"{_PREFIX}*"):
            if not psutil.pid_exists(int(folder.name.removeprefix(_PREFIX))):
                for inner in [path for path in folder.iterdir() if path.is_dir()]:
                    MemoryCgroup(inner, self.files, None).remove()
                folder.rmdir()


def cgroups_of_this_machine(mounts: Path = Path("/proc/mounts")) -> MemoryCgroups:
    """Return what makes cgroups here, of the version whose controller of memory is mounted.

    Args:
        mounts: the list of what is mounted.

    Raises:
        NoCgroupError: there is none, or it can't be written.
    """
    for line in mounts.read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if kind == "cgroup" and "memory" in options.split(","):
            return MemoryCgroups(Path(place), V1)
        controllers = Path(place) / "cgroup.controllers"
        if kind == "cgroup2" and "memory" in controllers.read_text().split():
            return MemoryCgroups(Path(place), V2)
    raise NoCgroupError(
        "pods run under their memory limits, and no cgroup controller of memory is mounted"
        " at /sys/fs/cgroup, neither of version 1 nor of version 2"
    )
