"""Outputs in files, in memory and on a disk, and processes of which each step can be watched.

A step is a request to the store, or a call that looks at a disk's names or changes them.
"""

import shutil
import sys
import tempfile
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from slackwater.spark_sink.errors import PublishError
from slackwater.spark_sink.formats import TEXT
from slackwater.spark_sink.output.bucket_place import Bucket
from slackwater.spark_sink.output.disk_place import Disk
from slackwater.spark_sink.output.epoch_compaction import EpochCompaction
from slackwater.spark_sink.output.epoch_place import EpochPlace, Form
from slackwater.spark_sink.output.file_log import EPOCHS, FileLog
from slackwater.spark_sink.output.file_writer import WrittenFile

_SUFFIXES: Final = {TEXT: "txt"}
# Of a thread that waits for another; none waits for a time.
_SECONDS_MAX: Final = 120
START: Final = datetime(2026, 1, 31, 9, tzinfo=UTC)
_REQUESTS: Final = ("put", "get", "head", "list", "list_with_delimiter", "delete", "copy")
_CALLS: Final = (
    *("open", "shutil.rmtree"),
    *(f"os.{name}" for name in ("rename", "link", "remove", "mkdir", "rmdir", "listdir")),
)


def nothing() -> None:
    """Do nothing before a step."""


class Steps:
    """Calls a function before each step of a process.

    Attributes:
        before: the function.
        count: how many steps there were.
        fails_at: the number of a step that fails, maybe after it was carried out; 0 for none.
        is_answer_lost: whether it was.
    """

    def __init__(self, before: Callable[[], None] = nothing) -> None:
        self.before = before
        self.count = 0
        self.fails_at = 0
        self.is_answer_lost = False

    def begin(self) -> bool:
        """Note a step, and return whether it fails."""
        self.count += 1
        self.before()
        return self.count == self.fails_at


class FilePlace(ABC):
    """A place of one output, as it is behind the back of the processes."""

    # Whether small epochs travel in their commits.
    holds_content = True

    @abstractmethod
    def opened(self, steps: Steps) -> EpochPlace:
        """Return it for one process."""

    def watching(self, steps: Steps) -> AbstractContextManager[None]:
        """Count the steps of this thread, inside, as a process's."""
        del steps
        return nullcontext()

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of all files, with their folders."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's content."""

    @abstractmethod
    def put(self, name: str, content: bytes) -> None:
        """Write a file."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file."""

    def delete_epochs(self) -> None:
        """Remove all epochs, as a user may."""
        for name in self.names():
            if name.startswith("epoch="):
                self.delete(name)

    def visible(self) -> list[int]:
        """Return the numbers that a reader sees who knows of no commits."""
        contents = [self.read(name) for name in self.names() if name[0] != "_"]
        return sorted(int(number) for content in contents for number in content.split())


class _Stepping:
    """A store each request to which is a step."""

    def __init__(self, store: MemoryStore, steps: Steps) -> None:
        self._store = store
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._store, name)
        if name not in _REQUESTS:
            return attribute

        def request(*args: Any, **kwargs: Any) -> Any:
            fails = self._steps.begin()
            if not fails:
                return attribute(*args, **kwargs)
            if self._steps.is_answer_lost:
                attribute(*args, **kwargs)
            raise GenericError("the connection was reset")

        return request


class InMemory(FilePlace):
    """An object store in memory."""

    def __init__(self) -> None:
        self.store = MemoryStore()

    def opened(self, steps: Steps) -> EpochPlace:
        stepping: Any = _Stepping(self.store, steps)
        return Bucket("memory", {}, stepping)

    def names(self) -> list[str]:
        return sorted(item["path"] for page in self.store.list() for item in page)

    def read(self, name: str) -> bytes:
        return bytes(self.store.get(name).bytes())

    def put(self, name: str, content: bytes) -> None:
        self.store.put(name, content)

    def delete(self, name: str) -> None:
        self.store.delete(name)


class InMemoryStaged(InMemory):
    """The same, for epochs that do not fit into a commit."""

    holds_content = False


class OnDisk(FilePlace):
    """A folder on a disk."""

    holds_content = False

    def __init__(self) -> None:
        # Removed with this object; in memory where that can be: nothing here is about power cuts.
        memory = "/dev/shm"
        self._folder = tempfile.TemporaryDirectory(dir=memory if Path(memory).is_dir() else None)
        self.path = Path(self._folder.name)

    def opened(self, steps: Steps) -> EpochPlace:
        del steps
        return Disk(self.path, str(self.path))

    @contextmanager
    def watching(self, steps: Steps) -> Iterator[None]:
        _install_hook()
        former = getattr(_watched, "steps", None)
        _watched.steps = steps
        try:
            yield
        finally:
            _watched.steps = former

    def names(self) -> list[str]:
        files = (path for path in self.path.rglob("*") if path.is_file())
        return sorted(str(path.relative_to(self.path)) for path in files)

    def read(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(content)

    def delete(self, name: str) -> None:
        (self.path / name).unlink()

    def delete_epochs(self) -> None:
        for folder in self.path.glob("epoch=*"):
            shutil.rmtree(folder)


PLACES: Final[dict[str, type[FilePlace]]] = {
    "in commits": InMemory,
    "staged": InMemoryStaged,
    "disk": OnDisk,
}
_watched = threading.local()
_hooks: list[Callable[[str, tuple[Any, ...]], None]] = []


def _install_hook() -> None:
    """Have each call of this process to its disks looked at: no hook can be taken away again."""
    if _hooks:
        return

    def hook(event: str, args: tuple[Any, ...]) -> None:
        steps: Steps | None = getattr(_watched, "steps", None)
        if steps is None or event not in _CALLS:
            return
        _watched.steps = None
        try:
            if steps.begin():
                raise OSError(5, "the disk failed", str(args[0]))
        finally:
            _watched.steps = steps

    _hooks.append(hook)
    sys.addaudithook(hook)


def at(number: float) -> datetime:
    """Return the low watermark of the epoch that ends with a number."""
    return START + timedelta(seconds=number)


class Process:
    """A process that publishes numbers: an epoch has those after the last one through its own.

    Attributes:
        last: the last number.
        steps: what it does; replaced by before().
        opened: the place, as the process has it.
    """

    def __init__(
        self, place: FilePlace, before: Callable[[], None] = nothing, file_format: str = TEXT
    ) -> None:
        self.place = place
        self.steps = Steps(before)
        self.opened = place.opened(self.steps)
        self.log = FileLog(self.opened, Form(file_format, _SUFFIXES.get(file_format, file_format)))
        self.last = 0

    def before(self, before: Callable[[], None]) -> None:
        """Call a function before each step from now on, and count from there."""
        self.steps.before, self.steps.count = before, 0

    def take_over(self, logged: Callable[[], datetime | None] = lambda: None) -> datetime | None:
        """Become the owner."""
        with self.place.watching(self.steps):
            low_watermark = self.log.take_over(logged).low_watermark
        self.last = 0 if low_watermark is None else round((low_watermark - START).total_seconds())
        return low_watermark

    def written(self, content: bytes, kind: str = EPOCHS, folder: str = "") -> WrittenFile:
        """Return a file as a task of this process hands it over."""
        if self.place.holds_content:
            return WrittenFile(folder, content, None)
        name = f"part-{uuid.uuid4()}"
        if isinstance(self.place, OnDisk):
            path = Disk(self.place.path, "").staging(self.log.owner, kind)
            path.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
            return WrittenFile(folder, None, name, len(content))
        staged = f"_staging/{self.log.owner}/{kind}/{name}"
        self.place.put(staged, content)
        return WrittenFile(folder, None, staged)

    def publish(self, through: int) -> bool:
        """Publish an epoch that two tasks have written."""
        numbers = range(self.last + 1, through + 1)
        written = [
            self.written("".join(f"{n}\n" for n in numbers if n % 2 == task).encode())
            for task in range(2)
        ]
        done = self.publish_files(written, at(through))
        self.last = through
        return done

    def publish_chunk(self, chunk: int, written: list[WrittenFile]) -> bool:
        """Publish a chunk of the epoch that has the numbers up to 9."""
        return self.publish_files(written, at(9), chunk)

    def publish_files(
        self, written: list[WrittenFile], low_watermark: datetime, chunk: int | None = None
    ) -> bool:
        """Publish what tasks have written."""
        with self.place.watching(self.steps):
            return self.log.publish(written, low_watermark, owner=self.log.owner, chunk=chunk)

    def compact(self, keep_s: float | None = None) -> None:
        """Compact the epochs."""
        with self.place.watching(self.steps):
            EpochCompaction(self.opened, self.log).run(keep_s)


def owner(place: FilePlace, file_format: str = TEXT) -> Process:
    """Return a new process that has taken the place over."""
    made = Process(place, file_format=file_format)
    made.take_over()
    return made


def freeze_at(step: int, then: Callable[[], None]) -> Callable[[], None]:
    """Return a function that, at its step-th call, has something else happen first."""
    calls = 0

    def before() -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            then()

    return before


class Hold:
    """Holds a thread back before its step of a number, counted from 1, until it may go on.

    Attributes:
        stands: is set when it is held back, or has ended.
        may_go_on: lets it go on.
        count: how many steps there were.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.count = 0
        self.stands = threading.Event()
        self.may_go_on = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        if self.count == self.step:
            self.stands.set()
            assert self.may_go_on.wait(_SECONDS_MAX)

    def run(self, work: Callable[[], object]) -> threading.Thread:
        """Do work in a thread, and return it when it stands; it may be told that it is no owner."""

        def done() -> None:
            try:
                with suppress(PublishError):
                    work()
            finally:
                self.stands.set()

        thread = threading.Thread(target=done)
        thread.start()
        assert self.stands.wait(_SECONDS_MAX)
        return thread


def at_two_switches(
    first: Process,
    work: Callable[[], object],
    at: Hold,
    second: Process,
    other: Callable[[], object],
    to: Hold,
) -> None:
    """Do work until a step, then other work until a step, then each to its end.

    Args:
        first, work, at: what a process does, which stands before the step of `at`.
        second, other, to: what another one does meanwhile, until it stands before that of `to`.
    """
    first.before(at)
    second.before(to)
    threads = [at.run(work), to.run(other)]
    for hold, thread in zip((at, to), threads, strict=True):
        hold.may_go_on.set()
        thread.join(_SECONDS_MAX)
        assert not thread.is_alive()
    first.before(nothing)
    second.before(nothing)
