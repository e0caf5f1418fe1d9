"""The positions of the source in files beside the output, each named by the commit it belongs to.

Only a commit tells which file counts: a process may die, or lose the pipeline, between a file and
its commit. A file is removed when many others have followed it and were committed.
"""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from slackwater.timestamp import datetime_to_us

if TYPE_CHECKING:
    from slackwater.spark_sink.output.epoch_place import EpochPlace

FOLDER: Final = "_positions"
# An output that was restored as of one time has the file that its last commit names.
_FILES_KEPT: Final = 20


class PositionFiles:
    """The files of one output, as the pipeline's owner adds them.

    Args:
        place: the output's.
    """

    def __init__(self, place: "EpochPlace") -> None:
        self._place = place
        self._files = place.folder(FOLDER)
        self._names: list[str] | None = None

    def add(self, low_watermark: datetime, plan: str, text: str) -> str:
        """Add the positions of a plan before the commit of its epoch; return their file's name."""
        name = f"{datetime_to_us(low_watermark):020d}-{plan}.json"
        with self._place.translating():
            self._files.create(name, text, is_durable=True)
        return name

    def read(self, name: str) -> str | None:
        """Return the text of a file; None if it is gone."""
        with self._place.translating():
            return self._files.read(name)

    def remove_before(self, name: str) -> None:
        """Remove old files, after the commit that names this one."""
        with self._place.translating():
            names = self._files.names() if self._names is None else [*self._names, name]
            self._names = sorted(set(names))
            old = [each for each in self._names if each < name][: -_FILES_KEPT + 1]
            self._files.remove(old, in_any_order=True)
            self._names = self._names[len(old) :]
