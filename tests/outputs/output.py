"""An output under kills, as the proofs see it, and the epochs that its readers saw."""

import abc
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.fs as pafs

from slackwater.demo.load import CHANGE_STREAM, Load
from slackwater.reader.change_stream import ChangeStream, Dialect
from tests.support.object_stores import ServedStore
from tests.support.truths import require_equal, truth_of

FOLDER: Final = "out"
# The emulator gets slower with each that it has seen.
TRANSACTIONS_PER_SECOND: Final = 6
# The kind of a request: its method, and a part of the name that it is about.
Moment = tuple[str, str]


@dataclass(frozen=True)
class Place:
    """Where an output is written, and what is written.

    Attributes:
        store: the name of the object store.
        file_format: as the command line has it.
        folder: of the proof, on a local disk that all its services see.
        dialect: of the database.
    """

    store: str
    file_format: str
    folder: Path
    dialect: Dialect


class Output(abc.ABC):
    """What a pipeline writes.

    Attributes:
        store: whose requests are lost or held back.
        moments: those of its requests at which the service is hit.
    """

    store: ServedStore
    moments: Sequence[Moment]
    change_stream: ClassVar[str] = CHANGE_STREAM

    def __init__(self, place: Place) -> None:
        self._place = place
        self._dialect = place.dialect

    def statements(self) -> Sequence[str] | None:
        """Return the database's schema; None for the demo's."""
        return None

    @abc.abstractmethod
    def sink(self) -> Mapping[str, Any]:
        """Return the section sink of the settings."""

    def spark_conf(self) -> Mapping[str, str]:
        """Return spark.conf of the settings."""
        return {}

    def write(self, stream: ChangeStream, seed: int, stop: threading.Event) -> None:
        """Change the database until it is stopped."""
        load = Load(stream, self._dialect, seed=seed)
        load.run(transactions_per_second=TRANSACTIONS_PER_SECOND, seconds=24 * 3_600, stop=stop)

    @abc.abstractmethod
    def look(self, stream: ChangeStream) -> None:
        """Read the output as it is now.

        Raises:
            AssertionError: it is not what a reader may see.
        """

    @abc.abstractmethod
    def require_equal(self, stream: ChangeStream, start_ns: int, end_ns: int) -> int:
        """Compare the output with the truth, and return how many records or rows are equal.

        Raises:
            AssertionError: it differs.
        """


# Opens an output; its servers run for the time of the context.
MakeOutput = Callable[[Place], AbstractContextManager[Output]]


class Changelog(Output):
    """A changelog, whose epochs have as many rows each as the watermark log says."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._seen: dict[str, int] = {}

    def note(self, epoch: str, rows: int, logged: int | None) -> None:
        """Note that a reader saw an epoch.

        Args:
            epoch: see epoch_id().
            rows: that it had.
            logged: that it has to have; None if no line of the log is there.
        """
        before = self._seen.setdefault(epoch, rows)
        assert before == rows, f"epoch {epoch} had {before} rows, and then {rows}"
        assert logged in (None, rows), f"epoch {epoch} had {rows} rows of {logged}"

    @abc.abstractmethod
    def rows(self) -> pa.Table:
        """Return the whole output, with each row's epoch in the column epoch."""

    def require_equal(self, stream: ChangeStream, start_ns: int, end_ns: int) -> int:
        """Compare records with the truth, and epochs with those that readers saw."""
        output = self.rows()
        require_equal(output, truth_of(stream, start_ns, end_ns, self._dialect))
        rows = Counter(output.column("epoch").to_pylist())
        changed = {name: (n, rows[name]) for name, n in self._seen.items() if n != rows[name]}
        assert changed == {}, f"epochs that changed after a reader saw them: {changed}"
        assert self._seen, "nobody saw an epoch"
        return int(output.num_rows)


def epoch_id(low_watermark: str) -> str:
    """Return what the name of an epoch's folder has behind the equals sign."""
    return low_watermark.replace("-", "").replace(":", "")


def names_in(files: pafs.FileSystem, folder: str) -> list[str]:
    """Return the names in a folder, whole; none if it is missing."""
    selector = pafs.FileSelector(folder, allow_not_found=True)
    return [info.path for info in files.get_file_info(selector)]


def logged_records(files: pafs.FileSystem, root: str) -> dict[str, int]:
    """Return the number of records by the epoch's id, as the watermark log below a root has it."""
    by_id: dict[str, int] = {}
    for path in names_in(files, f"{root}/_watermarks"):
        try:
            with files.open_input_stream(path) as stream:
                texts = stream.read().splitlines()
        except FileNotFoundError:
            # Merged into another file since.
            continue
        for line in map(json.loads, texts):
            by_id[epoch_id(line["low_watermark"])] = line["records"]
    return by_id


@dataclass
class Reader:
    """Looks at an output all the time.

    Attributes:
        failures: what it saw and should not have seen.
    """

    output: Output
    stream: ChangeStream
    looks: int = 0
    failures: list[str] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Look for the time of the context."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _run(self) -> None:
        took_s = 0.0
        # A large output takes long, and there is else to do.
        while not self._stop.wait(max(0.3, 3 * took_s)):
            began = time.monotonic()
            try:
                self.output.look(self.stream)
            except Exception as error:  # noqa: BLE001 - the proof's own thread raises it
                self.failures.append(f"{type(error).__name__}: {error}")
            self.looks += 1
            took_s = time.monotonic() - began
